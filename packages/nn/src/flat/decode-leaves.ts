// Fills a storage with the values of encoded parameters. See Note [encoded parameters].

import { byteSize, type DType, fromF32Array } from '@shardweave/dtypes';
import { type Storage, Tensor } from '@shardweave/tensor-core';
import {
  type DeviceEncoding,
  encodingOf,
  type HostEncoding,
} from '../parameters/encoded-parameter.js';
import type { FlatLayout } from './layout/flat-layout.js';

export interface DecodeOptions {
  /** The words of all leaves on the device. Decoders read them where no host bytes are given. */
  readonly flat: Storage;
  /** The same words on the host. */
  readonly bytes: Uint8Array | undefined;
  readonly words: FlatLayout;
  /** Where the values are written; each leaf's go to its place in the layout. */
  readonly full: Storage;
  readonly values: FlatLayout;
}

export async function decodeLeaves(
  leaves: readonly Tensor[],
  { flat, bytes, words, full, values }: DecodeOptions,
): Promise<void> {
  let onDevice: Storage | undefined;
  try {
    for (const [index, leaf] of leaves.entries()) {
      const encoding = encodingOf(leaf) as HostEncoding | DeviceEncoding;
      const [start, length] = [words.offsets[index]!, words.sizes[index]!];
      const place = values.offsets[index]!;
      if (encoding.decodesOn === 'host') {
        const [from, byteLength] = [start * 4, length * 4];
        const coded =
          bytes?.subarray(from, from + byteLength) ?? (await flat.read(from, byteLength));
        const decoded = await decodeOnHost(encoding, coded, leaf.size, full.dtype);
        full.write(decoded, place * byteSize(full.dtype));
      } else {
        onDevice ??= bytes === undefined ? flat : uploaded(bytes, flat);
        encoding.decode(onDevice.view(start, length), new Tensor(full, leaf.shape, place));
      }
    }
  } finally {
    if (onDevice !== flat) {
      onDevice?.release(); // all kernels that read it are queued
    }
  }
}

function uploaded(bytes: Uint8Array, { device }: Storage): Storage {
  const storage = device.storage(bytes.byteLength / 4, 'u32', 'staging');
  storage.fill();
  storage.write(bytes);
  return storage;
}

async function decodeOnHost(
  encoding: HostEncoding,
  coded: Uint8Array,
  size: number,
  dtype: DType,
): Promise<Uint8Array> {
  const decoded = new Float32Array(size);
  await encoding.decode(coded.subarray(0, encoding.byteLength), decoded);
  const bytes = fromF32Array(decoded, dtype);
  // If the values end with half a word, padding follows it.
  const padded = new Uint8Array(Math.ceil(bytes.byteLength / 4) * 4);
  padded.set(bytes);
  return padded;
}
