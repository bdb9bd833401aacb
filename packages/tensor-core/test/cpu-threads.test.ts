// The results of the CPU device don't depend on the number of threads, to the last bit.

import type { DType } from '@shardweave/dtypes';
import { type Backend, NORM_NODE_ELEMENTS, type View } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { describe, expect, it } from 'vitest';
import { makeView, randomFloats } from './support/cpu-device.js';

/** Three threads cut as two and seven do, and one takes all chunks in 16 bits as in f32. */
const countsOf = (dtype: DType) =>
  process.env.SHARDWEAVE_LONG === '1' ? [1, 2, 3, 7] : dtype === 'f32' ? [1, 3] : [3];
const ROWS = 517;
const COLS = 301;
const SIZE = ROWS * COLS;

/** Runs kernels large enough to be split, and returns the bytes of every output. */
async function runAll(backend: Backend, dtype: DType): Promise<Map<string, Uint8Array>> {
  const outputs = new Map<string, View>();
  const out = (name: string, size: number, type = dtype) => {
    const view = makeView(backend, type, size, new Float32Array(size));
    outputs.set(name, view);
    return view;
  };
  const x = makeView(backend, dtype, SIZE, randomFloats(SIZE, 1));
  const dy = makeView(backend, dtype, SIZE, randomFloats(SIZE, 2));
  const weight = makeView(backend, dtype, COLS, randomFloats(COLS, 3));
  const ids = makeView(
    backend,
    'u32',
    ROWS,
    Uint32Array.from({ length: ROWS }, (_, i) => (i * 7919) % 97),
  );
  const grid = { rows: ROWS, cols: COLS };

  backend.run('unary', { kind: 'gelu', x, out: out('gelu', SIZE) });
  backend.run('unaryBackward', { kind: 'tanh', x, dy, out: out('tanh backward', SIZE) });
  backend.run('binary', {
    kind: 'mul',
    a: x,
    b: weight,
    out: out('broadcast', SIZE),
    shape: [ROWS, COLS],
    aStrides: [COLS, 1],
    bStrides: [0, 1],
  });
  backend.run('dropout', {
    x,
    out: out('dropout', SIZE),
    p: 0.3,
    key0: 5,
    key1: 6,
    counterOffset: 2 ** 33 + 3,
  });
  for (const [outer, dim, inner] of [
    [ROWS, COLS, 1],
    [1, ROWS, COLS],
    [1, SIZE, 1],
  ] as const) {
    const sums = out(`sum ${outer} ${dim} ${inner}`, outer * inner);
    backend.run('reduce', { kind: 'sum', x, out: sums, outer, dim, inner });
  }
  const scores = { scale: 0.5, isLog: false, causalRows: 0, ...grid };
  backend.run('softmax', { x, out: out('softmax', SIZE), ...scores });
  const mean = out('mean', ROWS, 'f32');
  const rstd = out('rstd', ROWS, 'f32');
  const normal = { isCentered: true, x, weight, mean, rstd, ...grid } as const;
  backend.run('rowNorm', { ...normal, bias: weight, out: out('layerNorm', SIZE), eps: 1e-5 });
  backend.run('rowNormBackward', {
    ...normal,
    dy,
    dx: out('layerNorm dx', SIZE),
    dWeight: out('dWeight', COLS),
    dBias: out('dBias', COLS),
  });
  const root = { isCentered: false, ...grid, x, weight, weightOffset: 1, rstd } as const;
  const sums = { residual: dy, sum: out('rmsNorm sum', SIZE) };
  backend.run('rowNorm', { ...root, ...sums, out: out('rmsNorm', SIZE), eps: 1e-6 });
  backend.run('rowNormBackward', {
    ...root,
    dy,
    dSum: x,
    dx: out('rmsNorm dx', SIZE),
    dWeight: out('rmsNorm dWeight', COLS),
  });
  backend.run('embeddingBackward', {
    ids,
    dy,
    dTable: out('dTable', 101 * COLS),
    rows: 101,
    cols: COLS,
    count: ROWS,
  });
  const loss = out('loss', ROWS, 'f32');
  const lse = out('lse', ROWS, 'f32');
  backend.run('crossEntropy', { logits: x, targets: ids, loss, lse, ...grid });
  const spans = [{ start: 0, length: SIZE }];
  const nodes = out('norm nodes', Math.ceil(SIZE / NORM_NODE_ELEMENTS), 'f32');
  backend.run('normNodes', { x, out: nodes, spans, power: 2 });
  for (const transposeA of [false, true]) {
    for (const transposeB of [false, true]) {
      const k = 301;
      const m = 173;
      const n = 199;
      backend.run('matmul', {
        a: x,
        b: dy,
        out: out(`matmul ${transposeA} ${transposeB}`, 3 * m * 200),
        bias: weight,
        m,
        n: transposeA ? 200 : n - 1,
        k,
        transposeA,
        transposeB,
        aRow: transposeA ? m : k,
        bRow: transposeB ? k : 200,
        outRow: 200,
        batch: [1, 3],
        aBatch: [0, 7],
        bBatch: [0, 11],
        outBatch: [0, m * 200],
        alpha: 0.25,
        accumulate: false,
      });
    }
  }
  // The second call has one head of keys, which is split by keys, and the third has few queries.
  for (const [batch, numKvHeads, numKeys, numQueries] of [
    [2, 3, 200, 200],
    [1, 1, 700, 200],
    [2, 2, 600, 2],
  ] as const) {
    const rows = { batch, numHeads: 6, numKvHeads, numQueries, numKeys, dim: 18 };
    const strides = (count: number, heads: number) => {
      return { batch: count * heads * rows.dim, head: rows.dim, row: heads * rows.dim };
    };
    const [queries, keys] = [strides(numQueries, 6), strides(numKeys, numKvHeads)];
    const name = (what: string) => `attention ${what} of ${numKvHeads}`;
    const attended = batch * queries.batch;
    const pairs = numQueries * numKeys;
    const attention = {
      ...rows,
      ...{
        q: x,
        k: dy,
        v: x,
        mask: { ...x, size: pairs },
        querySegments: undefined,
        keySegments: undefined,
      },
      ...{ scale: 0.3, queryOffset: numKeys - numQueries, isCausal: true, window: numKeys - 50 },
      ...{ qStrides: queries, kStrides: keys, vStrides: keys },
      maskStrides: [0, 0, numKeys, 1] as const,
      dropout: { p: 0.2, key0: 3, key1: 4, counterOffset: 1 },
      out: out(name('out'), attended),
      stats: out(name('stats'), 2 * batch * 6 * numQueries, 'f32'),
    };
    backend.run('attention', attention);
    const dOut = { ...dy, size: attended };
    backend.run('attentionBackward', {
      ...attention,
      dOut,
      dq: out(name('dq'), attended),
      dk: out(name('dk'), batch * keys.batch),
      dv: out(name('dv'), batch * keys.batch),
    });
    const dMask = out(name('dMask'), pairs, 'f32');
    backend.run('attentionMaskGradient', { ...attention, dOut, dMask });
  }
  const bytes = new Map<string, Uint8Array>();
  for (const [name, { buffer }] of outputs) {
    bytes.set(name, await backend.read(buffer, 0, buffer.byteLength));
  }
  return bytes;
}

describe.each<DType>(['f32', 'f16', 'bf16'])('bits of %s results', (dtype) => {
  it.each(countsOf(dtype))('are those of the inline build with threads: %i', async (threads) => {
    const inline = await createCpuBackend({ threads: 0 });
    const threaded = await createCpuBackend({ threads });
    const expected = await runAll(inline, dtype);
    // Two rounds are run, since it differs from run to run which thread takes which chunk.
    for (let round = 0; round < 2; round++) {
      for (const [name, bytes] of await runAll(threaded, dtype)) {
        expect(Buffer.compare(bytes, expected.get(name)!), name).toBe(0);
        expect(
          bytes.some((byte) => byte !== 0),
          `${name} is all zeros`,
        ).toBe(true);
      }
    }
    await inline.dispose();
    await threaded.dispose();
  });
});
