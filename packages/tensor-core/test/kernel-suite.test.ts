// The conformance suite is tested on the reference device itself. Its cases must be well formed,
// cover every kernel and leave no buffers behind, and they must notice devices that are made wrong
// on purpose.

import type { Backend, KernelName, View } from '@shardweave/tensor-core';
import {
  type ConformanceCase,
  ConformanceError,
  createReferenceBackend,
  hiddenKeyKernelCases,
  kernelCases,
  manyKernelCases,
  splitKernelCases,
} from '@shardweave/tensor-core/testing';
import { describe, expect, test } from 'vitest';
import { fewHalves } from '../../../tooling/test-kit/first-of-each.ts';

/** The operands that each kernel writes. */
const OUTPUTS: Readonly<Record<KernelName, readonly string[]>> = {
  fill: ['out'],
  cast: ['out'],
  unary: ['out'],
  unaryBackward: ['out'],
  gated: ['out'],
  gatedBackward: ['out', 'outUp'],
  rotary: ['out'],
  affine: ['out'],
  binary: ['out'],
  compare: ['out'],
  where: ['out'],
  gather: ['out'],
  gatherBackward: ['dx'],
  topK: ['out'],
  cumSum: ['out'],
  copyStrided: ['out'],
  reduce: ['out'],
  extremumBackward: ['out'],
  softmax: ['out'],
  softmaxBackward: ['out'],
  rowNorm: ['out', 'sum', 'mean', 'rstd'],
  rowNormBackward: ['dx', 'dWeight', 'dBias'],
  decodeBlocks: ['out'],
  blockDots: ['out'],
  embedding: ['out'],
  embeddingBackward: ['dTable'],
  crossEntropy: ['loss', 'lse'],
  crossEntropyBackward: ['out'],
  dropout: ['out'],
  random: ['out'],
  attention: ['out', 'stats'],
  attentionBackward: ['stats', 'dq', 'dk', 'dv'],
  attentionMaskGradient: ['dMask'],
  matmul: ['out', 'activated'],
  normNodes: ['out'],
  normTree: ['out'],
  clipFactor: ['norm', 'scale'],
  adam: ['param', 'expAvg', 'expAvgSq'],
  sgd: ['param', 'momentumBuffer'],
  custom: ['out'],
};
const isLong = process.env.SHARDWEAVE_LONG === '1';
const cases = kernelCases();
const kernelOnly = cases.filter(({ name }) => !name.startsWith('queue'));
/** The first case of each kernel. */
const firstOfEach = kernelOnly.filter(({ name }, i) => {
  const kernel = name.split(' ')[0]!;
  return kernelOnly.findIndex((other) => other.name.startsWith(kernel)) === i;
});
/** The bytes of a value that no case expects, in any dtype. */
const WRONG = new Uint8Array(4).fill(0x42);

/** Makes a reference device that calls `after` when a kernel has run. */
function tapped(after: (backend: Backend, kernel: KernelName, outputs: View[]) => void) {
  const backend = createReferenceBackend();
  const run = backend.run.bind(backend);
  backend.run = (kernel, call) => {
    run(kernel, call);
    const views = { ...call, ...('epilogue' in call ? call.epilogue : {}) } as unknown as Record<
      string,
      View | undefined
    >;
    after(
      backend,
      kernel,
      OUTPUTS[kernel].flatMap((key) => views[key] ?? []),
    );
  };
  return backend;
}

/**
 * Returns the names of the cases that pass although every output of their last kernel is tampered
 * with.
 */
async function unnoticed(
  tested: readonly ConformanceCase[],
  tamper: (backend: Backend, output: View) => void,
): Promise<string[]> {
  const missed: string[] = [];
  for (const kernelCase of tested) {
    let numLeft = await numKernels(kernelCase);
    const backend = tapped((device, _kernel, outputs) => {
      numLeft -= 1;
      if (numLeft === 0) {
        for (const output of outputs) {
          tamper(device, output);
        }
      }
    });
    const error = await kernelCase.run(backend).catch((reason: unknown) => reason);
    if (!(error instanceof ConformanceError)) {
      missed.push(kernelCase.name);
    }
    expect(backend.usage().buffers).toBe(0);
  }
  return missed;
}

const kernelCounts = new Map<ConformanceCase, number>();
async function numKernels(kernelCase: ConformanceCase): Promise<number> {
  const known = kernelCounts.get(kernelCase);
  if (known !== undefined) {
    return known;
  }
  const backend = createReferenceBackend();
  await kernelCase.run(backend);
  kernelCounts.set(kernelCase, backend.dispatches);
  return backend.dispatches;
}

/** The kernels that ran on the reference device. */
const seen = new Set<KernelName>();
const reference = tapped((_backend, kernel) => seen.add(kernel));

describe('on the reference device', () => {
  const all = [...cases, ...manyKernelCases(), ...hiddenKeyKernelCases()];
  test.each(isLong ? all : fewHalves(all))('$name', async (kernelCase) => {
    const before = reference.dispatches;
    await kernelCase.run(reference);
    kernelCounts.set(kernelCase, reference.dispatches - before);
  });
});

describe('on a reference device with views of 4 KiB', () => {
  const backend = createReferenceBackend({ maxViewBytes: 4096 });
  test.each(splitKernelCases())('$name', (kernelCase) => kernelCase.run(backend));
});

test('split cases refuse a device without a small limit', async () => {
  const [first] = splitKernelCases();
  const run = first!.run(createReferenceBackend());
  await expect(run).rejects.toThrow(ConformanceError);
});

test('names are unique', () => {
  expect(new Set(cases.map(({ name }) => name)).size).toBe(cases.length);
});

test('every kernel of the seam is run', async () => {
  // Where the cases above did not run, some of them run here while a kernel is missing.
  for (const kernelCase of [...firstOfEach, ...cases]) {
    if (seen.size < Object.keys(OUTPUTS).length) {
      await kernelCase.run(reference);
    }
  }
  expect([...seen].sort()).toEqual(Object.keys(OUTPUTS).sort());
});

test('a wrong last element is noticed by every case', async () => {
  const all = isLong ? kernelOnly : fewHalves(kernelOnly);
  const missed = await unnoticed(all, (backend, { buffer, byteOffset, size, dtype }) => {
    const width = dtype === 'f16' || dtype === 'bf16' ? 2 : 4;
    const lastWord = Math.floor((byteOffset + size * width - 1) / 4) * 4;
    backend.write(buffer, lastWord, WRONG);
  });
  expect(missed).toEqual([]);
});

test('a number in the place of an infinite result is noticed', async () => {
  const tested = cases.filter(({ name }) => /^(overflow of f32|unary f32 of NaN)/.test(name));
  expect(tested).toHaveLength(2);
  for (const kernelCase of tested) {
    const outputs = new Set<number>();
    const backend = tapped((_backend, _kernel, views) => {
      for (const { buffer } of views) {
        outputs.add(buffer.id);
      }
    });
    const read = backend.read.bind(backend);
    backend.read = async (buffer, ...rest) => {
      const bytes = await read(buffer, ...rest);
      const floats = new Float32Array(bytes.buffer);
      const at = outputs.has(buffer.id) ? floats.indexOf(Number.POSITIVE_INFINITY) : -1;
      if (at >= 0) {
        floats[at] = 1e30;
      }
      return bytes;
    };
    // In each case the first infinite result is reported, by the kernel and kind that gave it.
    await expect(kernelCase.run(backend)).rejects.toThrow(
      /: (unary neg|binary add)\.out\[\d+\]: expected Infinity, got 1\.0\d*e\+30/,
    );
  }
});

test('a word written before an output is noticed', async () => {
  const missed = await unnoticed(firstOfEach, (backend, { buffer, byteOffset }) => {
    backend.write(buffer, byteOffset - 4, WRONG);
  });
  expect(missed).toEqual([]);
});

test('a word written after an output is noticed', async () => {
  const missed = await unnoticed(firstOfEach, (backend, { buffer, byteOffset, size, dtype }) => {
    const width = dtype === 'f16' || dtype === 'bf16' ? 2 : 4;
    backend.write(buffer, Math.ceil((byteOffset + size * width) / 4) * 4, WRONG);
  });
  expect(missed).toEqual([]);
});
