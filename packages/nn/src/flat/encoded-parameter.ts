// Frozen parameters whose values rest as bytes of another form, such as int8 with scales. A wrapper
// of their module keeps, gathers and loads these bytes as they are, and decodes them for the time
// of their use.
//
// Note [encoded parameters]
// No device has tensors of bytes: at rest they are u32 words, which devices copy without a look at
// them. A decoder says where it runs. On the host it needs no kernels, and the decoded values go to
// the device; on the device it gets the words there, and encodes kernels.

import { type Device, type DType, type Shape, Tensor, type View } from '@shardweave/tensor-core';

interface EncodingForm {
  /**
   * The encoding in words, with all that a decoder must know: ranks and stores compare the text.
   */
  readonly format: string;
  /** Bytes of the whole parameter. */
  readonly byteLength: number;
}

/** Makes f32 values from a parameter's bytes, which the caller keeps. */
export interface HostEncoding extends EncodingForm {
  readonly decodesOn: 'host';
  decode(bytes: Uint8Array, into: Float32Array): void | Promise<void>;
}

/** Encodes kernels that write a parameter's values, in `into`'s dtype, from its u32 words. */
export interface DeviceEncoding extends EncodingForm {
  readonly decodesOn: 'device';
  decode(words: View, into: Tensor): void;
}

/**
 * How the bytes of a parameter become values: by a decoder on the host, or by one that encodes
 * kernels of the device (see Note [encoded parameters]).
 */
export type ParameterEncoding = HostEncoding | DeviceEncoding;

/**
 * What an encoded parameter is made of: how its bytes become values, and where the bytes come from.
 */
export interface EncodedParameterOptions {
  readonly encoding: ParameterEncoding;
  /**
   * The dtype that wrappers take the values for: with f32 they compute in the dtype of the wrapper.
   * Default f32.
   */
  readonly dtype?: DType;
  /** Its bytes [start, start + length), asked for until a wrapper has them. */
  read(start: number, length: number): Uint8Array | Promise<Uint8Array>;
}

class EncodedParameter extends Tensor {
  encoding: ParameterEncoding | undefined = undefined;
  read: EncodedParameterOptions['read'] | undefined = undefined;
}

/**
 * A frozen leaf without memory; using its values outside of a wrapper throws a StateError that says
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
  device.track(tensor); // its scope, or itself, is the holder from here on
  storage.release();
  return tensor;
}

/** The encoding of a parameter; undefined where its values themselves rest. */
export function encodingOf(parameter: Tensor): ParameterEncoding | undefined {
  return parameter instanceof EncodedParameter ? parameter.encoding : undefined;
}

/**
 * The shape in which a parameter rests and is saved: its own, or that of an encoded one's words.
 */
export function restShape(parameter: Tensor): Shape {
  const encoding = encodingOf(parameter);
  return encoding === undefined ? parameter.shape : [Math.ceil(encoding.byteLength / 4)];
}

/** How many elements of a parameter rest, which is what layouts are made of: words, or values. */
export function restSize(parameter: Tensor): number {
  return restShape(parameter).reduce((product, dim) => product * dim, 1);
}

/** Bytes of words [start, start + length) of an encoded parameter, from where it was made. */
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

/** Lets go of a parameter's own bytes: from here on a wrapper has them. */
export function dropEncoded(parameter: Tensor): void {
  if (parameter instanceof EncodedParameter) {
    parameter.read = undefined;
  }
}
