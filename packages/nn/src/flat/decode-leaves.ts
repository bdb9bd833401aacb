// Fills a storage with the values of encoded parameters. See Note [encoded parameters].

import { byteSize, fromF32Array } from '@shardweave/dtypes';
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
  options: DecodeOptions,
): Promise<void> {
  let onDevice: Storage | undefined;
  const wordsOnDevice = () => {
    onDevice ??= uploaded(options);
    return onDevice;
  };
  try {
    for (const [index, leaf] of leaves.entries()) {
      const encoding = encodingOf(leaf)!;
      if (encoding.decodesOn === 'host') {
        await decodeOnHost(leaf, { ...options, encoding, index });
      } else {
        decodeOnDevice(leaf, { ...options, encoding, index, from: wordsOnDevice() });
      }
    }
  } finally {
    if (onDevice !== options.flat) {
      onDevice?.release(); // all kernels that read it are queued
    }
  }
}

function uploaded({ flat, bytes }: DecodeOptions): Storage {
  if (bytes === undefined) {
    return flat;
  }
  const storage = flat.device.storage(bytes.byteLength / 4, 'u32', 'staging');
  storage.fill();
  storage.write(bytes);
  return storage;
}

async function decodeOnHost(
  leaf: Tensor,
  {
    encoding,
    index,
    ...options
  }: DecodeOptions & { readonly encoding: HostEncoding; readonly index: number },
): Promise<void> {
  const { flat, words, full, values } = options;
  const start = words.offsets[index]! * 4;
  const length = words.sizes[index]! * 4;
  const whole = options.bytes?.subarray(start, start + length) ?? (await flat.read(start, length));
  const decoded = new Float32Array(leaf.size);
  await encoding.decode(whole.subarray(0, encoding.byteLength), decoded);
  const bytes = fromF32Array(decoded, full.dtype);
  // If the values end with half a word, padding follows it.
  const padded = new Uint8Array(Math.ceil(bytes.byteLength / 4) * 4);
  padded.set(bytes);
  full.write(padded, values.offsets[index]! * byteSize(full.dtype));
}

function decodeOnDevice(
  leaf: Tensor,
  {
    encoding,
    index,
    from,
    words,
    full,
    values,
  }: DecodeOptions & {
    readonly encoding: DeviceEncoding;
    readonly index: number;
    readonly from: Storage;
  },
): void {
  const view = from.view(words.offsets[index]!, words.sizes[index]!);
  encoding.decode(view, new Tensor(full, leaf.shape, values.offsets[index]!));
}
