// Attention of the CPU device and its gradients, to compare the bits of devices.

import { byteSize, type DType } from '@shardweave/dtypes';
import type { Backend } from '@shardweave/tensor-core';
import { makeView, randomFloats } from './cpu-device.js';

export interface AttentionShape {
  readonly queries: number;
  readonly keys: number;
  readonly dim: number;
}

/** Runs two causal heads of queries beside one of keys. Returns the bytes of all results. */
export async function runAttention(
  backend: Backend,
  dtype: DType,
  { queries, keys, dim }: AttentionShape,
): Promise<Uint8Array> {
  const random = (size: number, seed: number) =>
    makeView(backend, dtype, size, randomFloats(size, seed));
  const zeros = (size: number, type = dtype) =>
    makeView(backend, type, size, new Float32Array(size));
  const [ofQueries, ofKeys] = [queries * 2 * dim, keys * dim];
  const [q, dOut] = [random(ofQueries, 1), random(ofQueries, 2)];
  const [k, v] = [random(ofKeys, 3), random(ofKeys, 4)];
  const outs = {
    out: zeros(ofQueries),
    dq: zeros(ofQueries),
    dk: zeros(ofKeys),
    dv: zeros(ofKeys),
  };
  const stats = zeros(4 * queries, 'f32');
  const call = {
    ...{ q, k, v, out: outs.out, stats },
    ...{ mask: undefined, querySegments: undefined, keySegments: undefined, dropout: undefined },
    ...{ batch: 1, numHeads: 2, numKvHeads: 1, numQueries: queries, numKeys: keys, dim },
    ...{ scale: 0.25, queryOffset: keys - queries, isCausal: true, window: 0 },
    qStrides: { batch: 0, head: dim, row: 2 * dim },
    kStrides: { batch: 0, head: 0, row: dim },
    vStrides: { batch: 0, head: 0, row: dim },
    maskStrides: [0, 0, 0, 0] as const,
  };
  backend.run('attention', call);
  const { dq, dk, dv } = outs;
  backend.run('attentionBackward', { ...call, dOut, dq, dk, dv });
  const parts: Uint8Array[] = [];
  for (const { buffer, size } of Object.values(outs)) {
    parts.push((await backend.read(buffer, 0, buffer.byteLength)).slice(0, size * byteSize(dtype)));
  }
  for (const { buffer } of [q, k, v, dOut, stats, ...Object.values(outs)]) {
    backend.free(buffer);
  }
  return Buffer.concat(parts);
}
