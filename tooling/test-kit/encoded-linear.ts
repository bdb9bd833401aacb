// A trained layer with a frozen weight that rests encoded, and the same layer with the weight's
// decoded values, which is its specification.

import { encodedByteLength, f16ToF32, f32ToF16, WireCodec } from '@shardweave/dtypes';
import { Linear, Module } from '@shardweave/nn';
import { type EncodedParameterOptions, encodedParameter } from '@shardweave/nn/flat';
import {
  add,
  type Device,
  type DType,
  matmul,
  type Tensor,
  type View,
} from '@shardweave/tensor-core';

export const WIDTH = 7; // 49 values leave half a word over in 16 bits
const SIZE = WIDTH * WIDTH;

type Encoding = EncodedParameterOptions['encoding'];

export interface Encoded {
  readonly encoding: Encoding;
  readonly bytes: Uint8Array;
  /** The values that it decodes to. */
  readonly values: Float32Array;
}

function original(seed: number): Float32Array {
  return Float32Array.from({ length: SIZE }, (_, i) => Math.sin(i * 1.7 + seed) / 3);
}

/**
 * A weight in int8 with one scale per block of 256. It is decoded on the host, since devices have
 * no 8-bit types.
 */
export async function int8Weight(seed: number): Promise<Encoded> {
  const codec = await WireCodec.create();
  const bytes = new Uint8Array(encodedByteLength('int8', SIZE));
  const bytesOf = (array: Float32Array) => new Uint8Array(array.buffer);
  await codec.encode(bytesOf(original(seed)), bytes, { format: 'int8' });
  const decode = (coded: Uint8Array, into: Float32Array) =>
    codec.decode(coded, bytesOf(into), { format: 'int8' });
  const values = new Float32Array(SIZE);
  await decode(bytes, values);
  const encoding: Encoding = {
    format: 'int8 in blocks of 256',
    byteLength: bytes.byteLength,
    decodesOn: 'host',
    decode,
  };
  return { encoding, bytes, values };
}

/** A weight in f16 with an f32 scale. The device decodes it by a product with the scale. */
export async function scaledF16Weight(seed: number): Promise<Encoded> {
  const scale = 3;
  const halves = Uint16Array.from(original(seed), (value) => f32ToF16(value / scale));
  const bytes = new Uint8Array(4 + 2 * SIZE);
  new DataView(bytes.buffer).setFloat32(0, scale, true);
  bytes.set(new Uint8Array(halves.buffer), 4);
  const encoding: Encoding = {
    format: 'scaled f16',
    byteLength: bytes.byteLength,
    decodesOn: 'device',
    decode: (words, into) => {
      const { device, size } = into;
      const { buffer, byteOffset } = words;
      const factor: View = { buffer, byteOffset, dtype: 'f32', size: 1 };
      const x: View = { buffer, byteOffset: byteOffset + 4, dtype: 'f16', size };
      const wide = device.storage(size, 'f32', 'staging');
      wide.fill();
      const out = wide.view();
      device.backend.run('cast', { x, out });
      const walk = { shape: [size], aStrides: [1], bStrides: [0] };
      device.backend.run('binary', { kind: 'mul', a: out, b: factor, out, ...walk });
      device.backend.run('cast', { x: out, out: into.view() });
      wide.release();
    },
  };
  const values = Float32Array.from(halves, (half) => f16ToF32(half) * scale);
  return { encoding, bytes, values };
}

export interface EncodedLinearOptions {
  /** False puts the decoded values into a plain parameter. */
  readonly isEncoded: boolean;
  readonly dtype?: DType;
}

export class EncodedLinear extends Module<[x: Tensor], Tensor> {
  readonly base: Tensor;
  readonly adapter: Linear;

  constructor(device: Device, { encoding, bytes, values }: Encoded, options: EncodedLinearOptions) {
    super(device);
    const shape = [WIDTH, WIDTH];
    const read = (start: number, length: number) => bytes.subarray(start, start + length);
    const { isEncoded, dtype = 'f32' } = options;
    this.base = this.parameter(
      'base',
      isEncoded
        ? encodedParameter(device, shape, { encoding, dtype, read })
        : device.tensor(values, shape, { tag: 'parameter' }),
    );
    this.base.requiresGrad = false;
    this.adapter = this.child(
      'adapter',
      new Linear(device, { inFeatures: WIDTH, outFeatures: WIDTH }),
    );
  }

  async forward(x: Tensor): Promise<Tensor> {
    return add(matmul(x, this.base), await this.adapter.call(x));
  }
}
