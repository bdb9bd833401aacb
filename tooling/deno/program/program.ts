// What runs in Deno: one order, out of the file that the first argument names. The answer is the
// only output. The case or text that is being run is told on stderr, for what never ends.

import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { runCases } from '../../browser/page/conformance.ts';
import { type TrainResult, trainFewSteps } from '../../browser/page/train.ts';
import { type CompileResult, compileTexts, type WgslText } from './compile-texts.ts';

declare const Deno: {
  readonly args: readonly string[];
  readonly version: Readonly<Record<'deno', string>>;
  readTextFileSync(path: string): string;
  readonly stderr: { writeSync(bytes: Uint8Array): number };
};

export type Order =
  /** Runs the cases of these names, or all of them. */
  | { readonly kind: 'conformance'; readonly names?: readonly string[] }
  /** Trains by the loop of the test page, on WebGPU and on the CPU device. */
  | { readonly kind: 'train' }
  /** Waits once for work, and counts how often the device was asked. */
  | { readonly kind: 'wait' }
  /** Makes a shader module of each text. */
  | { readonly kind: 'compile'; readonly texts: readonly WgslText[] };

interface Answers {
  readonly conformance: {
    readonly adapter: string;
    readonly passed: readonly string[];
    /** What each failed case said, by name. */
    readonly failed: Readonly<Record<string, string>>;
  };
  readonly train: Readonly<Record<'webgpu' | 'cpu', TrainResult>>;
  readonly wait: { readonly numAsked: number };
  readonly compile: CompileResult;
}

export type Answer<O extends Order> = Answers[O['kind']];

/**
 * Devices whose cases run beside each other. Deno tells some 15 ms late that a read is done,
 * however small it is, and a suite on one device would spend its time on that.
 */
const NUM_LANES = 4;

const tell = (text: string) => Deno.stderr.writeSync(new TextEncoder().encode(`${text}\n`));

async function conformance(names?: readonly string[]): Promise<Answers['conformance']> {
  const cases = kernelCases().filter(({ name }) => names === undefined || names.includes(name));
  const left = cases.values(); // which all lanes take theirs from
  const lanes = await Promise.all(
    Array.from({ length: NUM_LANES }, async () => {
      const backend = await createWebGpuBackend();
      const results = await runCases(backend, left, tell);
      await backend.dispose();
      return { adapter: backend.info.description, ...results };
    }),
  );
  return {
    adapter: lanes[0]!.adapter,
    passed: lanes.flatMap(({ passed }) => passed),
    failed: Object.assign({}, ...lanes.map(({ failed }) => failed)),
  };
}

async function train(): Promise<Answers['train']> {
  return { webgpu: await trainFewSteps('webgpu'), cpu: await trainFewSteps('cpu:1') };
}

async function wait(): Promise<Answers['wait']> {
  const map = GPUBuffer.prototype.mapAsync;
  let numAsked = 0;
  GPUBuffer.prototype.mapAsync = function (...args) {
    numAsked += 1;
    return map.apply(this, args);
  };
  const backend = await createWebGpuBackend();
  await backend.sync();
  await backend.dispose();
  return { numAsked };
}

function run(order: Order): Promise<Answers[Order['kind']]> {
  switch (order.kind) {
    case 'conformance':
      return conformance(order.names);
    case 'train':
      return train();
    case 'wait':
      return wait();
    case 'compile':
      return compileTexts(order.texts, tell);
  }
}

const order = JSON.parse(Deno.readTextFileSync(Deno.args[0]!)) as Order;
console.log(JSON.stringify(await run(order)));
