// A model in one GGUF file as two.

import { type GgufFile, type GgufTensor, ggufFile, type MetadataValue } from '@shardweave/gguf';
import { openGguf, type StoredTensor } from '@shardweave/gguf/read';
import type { ByteSource } from '@shardweave/nn';

/**
 * The halves of a file, with the keys that llama.cpp's gguf-split gives them. The tensors come
 * backwards, since a file may have them in any order.
 */
export async function ggufShards(source: ByteSource): Promise<readonly GgufFile[]> {
  const { metadata, tensors } = await openGguf(source);
  const all = [...tensors.values()].reverse();
  const half = Math.floor(all.length / 2);
  return [all.slice(0, half), all.slice(half)].map((part, i) => {
    const split = [
      ['split.no', { type: 'u32', value: i }],
      ['split.count', { type: 'u32', value: 2 }],
      ['split.tensors.count', { type: 'u32', value: all.length }],
    ] as const;
    const own = i === 0 ? (metadata as ReadonlyMap<string, MetadataValue>) : [];
    return ggufFile(new Map([...own, ...split]), part.map(asWritten));
  });
}

/** The tensor of another file, as the writer takes it. */
export function asWritten({ name, type, shape, byteLength, read }: StoredTensor): GgufTensor {
  const pieces = async function* () {
    yield await read({ start: 0, byteLength });
  };
  return { name, type, shape, pieces };
}
