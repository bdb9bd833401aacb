// Makes tensors equal to those of one rank. They travel as flat buffers, one dtype after another,
// in the order in which dtypes first occur.

import type { ProcessGroup, WireDType } from '@shardweave/collectives';
import { byteSize, type DType } from '@shardweave/dtypes';
import type { Tensor } from '@shardweave/tensor-core';

/** The host memory that a broadcast takes at a time; a larger tensor travels alone. */
const CHUNK_BYTES = 32 * 2 ** 20;

export interface BroadcastOptions {
  readonly root: number;
  readonly tag: string;
  /** The text that ranks compare. Default: the tag. */
  readonly identity?: string;
}

/**
 * Sends the values of rank `root` to all ranks. Collective: every rank gives tensors of the same
 * sizes and dtypes.
 */
export async function broadcastTensors(
  group: ProcessGroup,
  tensors: readonly Tensor[],
  options: BroadcastOptions,
): Promise<void> {
  for (const [dtype, list] of byDType(tensors)) {
    for (const chunk of chunksOf(list)) {
      await broadcastChunk(group, chunk, { ...options, dtype });
    }
  }
}

async function broadcastChunk(
  group: ProcessGroup,
  chunk: readonly Tensor[],
  { root, tag, identity = tag, dtype }: BroadcastOptions & { readonly dtype: DType },
): Promise<void> {
  const bytes = new Uint8Array(chunk.reduce((sum, tensor) => sum + bytesOf(tensor), 0));
  const starts: number[] = [];
  let end = 0;
  for (const tensor of chunk) {
    starts.push(end);
    end += bytesOf(tensor);
  }
  if (group.rank === root) {
    const values = await Promise.all(chunk.map((tensor) => tensor.toBytes()));
    for (const [i, value] of values.entries()) {
      bytes.set(value, starts[i]!);
    }
  }
  await group.broadcast(bytes, { root, dtype: dtype as WireDType, tag, identity });
  if (group.rank === root) {
    return;
  }
  for (const [i, tensor] of chunk.entries()) {
    const start = starts[i]!;
    const byteOffset = tensor.offset * byteSize(dtype);
    tensor.storage.write(bytes.slice(start, start + bytesOf(tensor)), byteOffset);
  }
}

function byDType(tensors: readonly Tensor[]): Map<DType, Tensor[]> {
  const groups = new Map<DType, Tensor[]>();
  for (const tensor of tensors) {
    if (tensor.size === 0) {
      continue;
    }
    const list = groups.get(tensor.dtype);
    if (list === undefined) {
      groups.set(tensor.dtype, [tensor]);
    } else {
      list.push(tensor);
    }
  }
  return groups;
}

function* chunksOf(tensors: readonly Tensor[]): Generator<Tensor[]> {
  let chunk: Tensor[] = [];
  let byteLength = 0;
  for (const tensor of tensors) {
    if (chunk.length > 0 && byteLength + bytesOf(tensor) > CHUNK_BYTES) {
      yield chunk;
      chunk = [];
      byteLength = 0;
    }
    chunk.push(tensor);
    byteLength += bytesOf(tensor);
  }
  if (chunk.length > 0) {
    yield chunk;
  }
}

function bytesOf(tensor: Tensor): number {
  return tensor.size * byteSize(tensor.dtype);
}
