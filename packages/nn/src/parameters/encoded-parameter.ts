// Frozen parameters whose values rest in another form, such as int8 with scales. A wrapper of their
// module keeps, gathers and loads these bytes as they are, and decodes them only while they are
// used.
//
// Note [encoded parameters]
// Devices have no tensors of bytes, so the bytes rest as u32 words, which devices copy without
// interpreting them. A decoder says where it runs. On the host it needs no kernels, and the decoded
// values go to the device. On the device it gets the words there and encodes kernels.

import { type Device, type DType, type Shape, Tensor, type View } from '@shardweave/tensor-core';

interface EncodingForm {
  /**
   * The name of the encoding with everything that a decoder must know. Ranks and stores compare
   * this text.
   */
  readonly format: string;
  /** The bytes of the whole parameter. */
  readonly byteLength: number;
}

/** Makes f32 values from a parameter's bytes. The bytes remain the caller's. */
export interface HostEncoding extends EncodingForm {
  readonly decodesOn: 'host';
  decode(bytes: Uint8Array, into: Float32Array): void | Promise<void>;
}

/**
 * Encodes kernels that write a parameter's values into `into`, in the dtype of `into`, from its u32
 * words.
 */
export interface DeviceEncoding extends EncodingForm {
  readonly decodesOn: 'device';
  decode(words: View, into: Tensor): void;
}

/**
 * How the bytes of a parameter become values: by a decoder on the host, or by one that encodes
 * kernels on the device. See Note [encoded parameters].
 */
export type ParameterEncoding = HostEncoding | DeviceEncoding;

/** Options of an encoded parameter: how its bytes become values, and where the bytes come from. */
export interface EncodedParameterOptions {
  readonly encoding: ParameterEncoding;
  /**
   * The dtype that the values count as. A wrapper treats f32 as it treats f32 parameters, and
   * computes in its own dtype. Default f32.
   */
  readonly dtype?: DType;
  /**
   * Reads bytes [start, start + length) of the parameter. It is called until a wrapper has them.
   */
  read(start: number, length: number): Uint8Array | Promise<Uint8Array>;
}

class EncodedParameter extends Tensor {
  encoding: ParameterEncoding | undefined = undefined;
  read: EncodedParameterOptions['read'] | undefined = undefined;
}

/**
 * A frozen leaf without memory. Using its values outside of a wrapper throws a StateError that says
 * so.
 */
export function encodedParameter(
  device: Device,
  shape: Shape,
  { encoding, dtype = 'f32', read }: EncodedParameterOptions,
): Tensor {
  const elementCount = shape.reduce((product, dim) => product * dim, 1);
  const storage = device.storage(elementCount, dtype, 'parameter');
  storage.absentHint = `Its values rest as ${encoding.format}: wrap its module with sharding or offload, which decodes them around their use.`;
  const tensor = new EncodedParameter(storage, shape);
  tensor.encoding = encoding;
  tensor.read = read;
  device.scopes.track(tensor); // held by its scope or by itself from here on
  storage.release();
  return tensor;
}

/** The encoding of a parameter; undefined for one whose values themselves rest. */
export function encodingOf(parameter: Tensor): ParameterEncoding | undefined {
  return parameter instanceof EncodedParameter ? parameter.encoding : undefined;
}

/**
 * The shape in which a parameter rests and is saved: that of its words if it is encoded, otherwise
 * its own.
 */
export function restShape(parameter: Tensor): Shape {
  const encoding = encodingOf(parameter);
  return encoding === undefined ? parameter.shape : [Math.ceil(encoding.byteLength / 4)];
}

/**
 * The number of elements in which a parameter rests: words if it is encoded, otherwise values.
 * Layouts count these.
 */
export function restSize(parameter: Tensor): number {
  return restShape(parameter).reduce((product, dim) => product * dim, 1);
}

/** The bytes of words [start, start + length) of an encoded parameter, read from its source. */
export async function readEncoded(
  parameter: Tensor,
  { start, length }: { readonly start: number; readonly length: number },
): Promise<Uint8Array> {
  const { encoding, read } = parameter as EncodedParameter;
  const words = new Uint8Array(length * 4);
  const end = Math.min((start + length) * 4, encoding!.byteLength);
  words.set(await read!(start * 4, end - start * 4));
  return words;
}

/** Releases a parameter's source of bytes. From here on a wrapper has them. */
export function dropEncoded(parameter: Tensor): void {
  if (parameter instanceof EncodedParameter) {
    parameter.read = undefined;
  }
}
