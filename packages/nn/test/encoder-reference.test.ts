// Encoders are compared with PyTorch (tooling/reference/encoders.py): what a call gives, every
// gradient, and the losses of twenty steps. One gives its rows. The other has token types, and
// gives what its pooler makes of them.

import { readFileSync } from 'node:fs';
import {
  AdamW,
  clipGradNorm,
  loadStateDict,
  packParameters,
  readSafetensors,
} from '@shardweave/nn';
import { Encoder, parseEncoderConfig } from '@shardweave/nn/embedding';
import {
  type Backend,
  cast,
  Device,
  mean,
  mul,
  square,
  sub,
  type Tensor,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { noWebGpu, openWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';

interface Case {
  readonly model: string;
  readonly name: string;
  readonly precision: 'fp32' | 'bf16' | 'fp16';
  readonly flags: {
    readonly batch: number;
    readonly weightDecay: number;
    readonly clip: number;
    readonly betas: readonly [number, number];
    readonly eps: number;
  };
  readonly losses: readonly number[];
  readonly gradNorms: readonly number[];
  readonly lrs: readonly number[];
  readonly lossScales: readonly number[];
}

const DATA = new URL('../../../tooling/reference/data/', import.meta.url);
const file = (path: string) => readFileSync(new URL(path, DATA));
const expected = JSON.parse(file('encoders/expected.json').toString()) as {
  readonly seq: number;
  readonly rows: number;
  readonly rowLosses: Readonly<Record<string, number>>;
  readonly cases: readonly Case[];
};
const text = file('tiny/text.txt');
const { seq } = expected;

/** Rounding in f32 alone reaches a tenth of the first bound and a fiftieth of the second. */
const OUTPUT = 1e-5;
const GRADIENT = 1e-4;
/** Those of the trainer's runs of other models; see tooling/reference/README.md. */
const LOSSES = { fp32: 2e-4, bf16: 5e-3, fp16: 5e-3 } as const;

const backend = await createCpuBackend({ threads: 1 });
const gpu = noWebGpu === undefined ? await openWebGpu() : undefined;
afterAll(async () => {
  await backend.dispose();
  await gpu?.dispose();
});

const floats = (bytes: Uint8Array) => new Float32Array(Uint8Array.from(bytes).buffer);
const floatsOf = async (tensor: Tensor) => (await tensor.toArray()) as Float32Array;
const norm = (values: ArrayLike<number>) => Math.hypot(...Array.from(values));

async function load(device: Device, name: string): Promise<Encoder> {
  const config = parseEncoderConfig(file(`encoders/${name}/config.json`).toString());
  const hasPooler = name === 'pooled';
  const model = new Encoder(device, { ...config, add_pooling_layer: hasPooler });
  await loadStateDict(model, readSafetensors(file(`encoders/${name}/model.safetensors`)).tensors);
  return model;
}

/** The rows of the text that a step has, each as a list of tokens. */
const rowsAt = (step: number, batch: number) =>
  Array.from({ length: batch }, (_, i) => {
    const first = ((step * batch + i) * seq) % (text.length - seq - 1);
    return [...text.subarray(first, first + seq)];
  });

/** What the model gives for rows: all of them, or the pooler's where it has one. */
function output(model: Encoder, rows: readonly (readonly number[])[]): Promise<Tensor> {
  const shape = [rows.length, seq];
  const ints = (values: readonly number[]) => model.device.tensor(Int32Array.from(values), shape);
  const isPooled = model.config.add_pooling_layer;
  const types = rows.flatMap((row) => row.map((_, i) => (i >= Math.floor(seq / 3) ? 2 : 1)));
  return model.call(ints(rows.flat()), isPooled ? { isPooled, tokenTypes: ints(types) } : {});
}

/** The mean square of what the output is away from sines of a token and a column. */
function lossOf(out: Tensor, rows: readonly (readonly number[])[]): Tensor {
  const chosen = out.rank === 3 ? rows.flat() : rows.map(([first]) => first!);
  const width = out.shape.at(-1)!;
  const wanted = chosen.flatMap((token) =>
    Array.from({ length: width }, (_, column) => Math.sin(token * 0.37 + column)),
  );
  const targets = out.device.tensor(Float32Array.from(wanted), out.shape);
  return mean(square(sub(cast(out, 'f32'), targets)));
}

describe.each(Object.keys(expected.rowLosses))('%s', (name) => {
  const holdsToPyTorch = async (on: Backend) => {
    const { tensors } = readSafetensors(file(`encoders/${name}/expected.safetensors`));
    const device = new Device(on);
    const model = await load(device, name);
    const rows = rowsAt(0, expected.rows);
    const loss = await device.scope(async () => {
      const out = await output(model, rows);
      const found = await floatsOf(out);
      const wanted = floats(tensors.get('output')!.data);
      expect(found).toHaveLength(wanted.length);
      const off = found.map((value, i) => Math.abs(value - wanted[i]!));
      expect(off.reduce((most, value) => Math.max(most, value), 0)).toBeLessThan(OUTPUT);
      const loss = lossOf(out, rows);
      await loss.backward();
      return loss.item();
    });
    expect(Math.abs(loss / expected.rowLosses[name]! - 1)).toBeLessThan(1e-6);
    const named = model.namedParameters();
    expect(named.map(([path]) => `gradient.${path}`).sort()).toEqual(
      [...tensors.keys()].filter((key) => key !== 'output').sort(),
    );
    for (const [path, parameter] of named) {
      const found = await floatsOf(parameter.grad!);
      const wanted = floats(tensors.get(`gradient.${path}`)!.data);
      const off = norm(found.map((value, i) => value - wanted[i]!));
      // A key's bias moves all scores of a query alike, so its gradient is 0 but for rounding.
      const size = path.endsWith('key.bias') ? 1e-2 : norm(wanted);
      expect(off / size, path).toBeLessThan(GRADIENT);
    }
    model.dispose();
    device.dispose();
  };

  it('gives what PyTorch does, with its loss and gradients', () => holdsToPyTorch(backend));

  it.skipIf(gpu === undefined)(
    `gives what PyTorch does on WebGPU, too${gpu === undefined ? ` (${noWebGpu})` : ''}`,
    () => holdsToPyTorch(gpu!),
  );
});

/** Trains as a case says, and returns the losses and the norms of its steps. */
async function train({ model: name, precision, flags, lrs, lossScales }: Case) {
  const device = new Device(backend);
  const model = await load(device, name);
  const computeDType = ({ fp32: undefined, bf16: 'bf16', fp16: 'f16' } as const)[precision];
  const packed = packParameters(model, computeDType && { computeDType });
  const parameters = model.parameters();
  const optimizer = new AdamW(
    [
      { params: parameters.filter(({ rank }) => rank >= 2), weightDecay: flags.weightDecay },
      { params: parameters.filter(({ rank }) => rank < 2), weightDecay: 0 },
    ],
    { betas: flags.betas, eps: flags.eps },
  );
  const losses: number[] = [];
  const gradNorms: number[] = [];
  for (const [step, lr] of lrs.entries()) {
    const rows = rowsAt(step, flags.batch);
    await device.scope(async () => {
      const loss = lossOf(await output(model, rows), rows);
      await mul(loss, lossScales[step]!).backward();
      losses.push(await loss.item());
      const unscale = 1 / lossScales[step]!;
      const { norm, scale } = await clipGradNorm(model, flags.clip, { unscale });
      for (const group of optimizer.groups) {
        group.lr = lr;
      }
      await optimizer.step({ gradScale: scale });
      gradNorms.push(await norm.item());
    });
    optimizer.zeroGrad();
  }
  for (const owner of [optimizer, model, packed, device]) {
    owner.dispose();
  }
  return { losses, gradNorms };
}

const worst = (found: readonly number[], wanted: readonly number[]) =>
  Math.max(...found.map((value, i) => Math.abs(value / wanted[i]! - 1)));

describe('twenty steps of AdamW have the losses of PyTorch', () => {
  it.each(expected.cases)('$name', async (given) => {
    const { losses, gradNorms } = await train(given);
    expect(losses).toHaveLength(given.losses.length);
    expect(worst(losses, given.losses)).toBeLessThan(LOSSES[given.precision]);
    expect(worst(gradNorms, given.gradNorms)).toBeLessThan(2 * LOSSES[given.precision]);
  });
});
