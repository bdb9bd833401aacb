// Frozen parameters whose values rest in another form, such as int8 with scales. A wrapper of their
// module keeps, gathers and loads these bytes as they are, and decodes them only while they are
// used.
//
// Note [encoded parameters]
// Devices have no tensors of bytes, so the bytes rest as u32 words, which devices copy without
// interpreting them. A decoder says where it runs. On the host it needs no kernels, and the decoded
// values go to the device. On the device it gets the words there and encodes kernels. Both fill a
// copy of all values. Parameters in ggml's blocks need none: ops read their words as they use them,
// so that a gathered one is as small as a resting one.

import { byteSize, isFloat, toF32Array } from '@shardweave/dtypes';
import { BLOCK_SIZES, blocksByteLength, encodeBlocks } from '@shardweave/dtypes/blocks';
import {
  type Blocks,
  type Device,
  type DType,
  type Shape,
  Tensor,
  type View,
} from '@shardweave/tensor-core';
import { drawInto, recipeOf } from './deferred-parameter.js';

/** How many numbers are on the host at once while they are encoded: 4 MiB of them. */
const ENCODED_NUMBERS = 2 ** 20;

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

/** Blocks, which ops decode as they use them (Tensor.blocks). */
export interface BlockEncoding extends EncodingForm {
  readonly decodesOn: 'use';
}

/**
 * How the bytes of a parameter become values: by a decoder on the host, by one that encodes kernels
 * on the device, or in the ops that use it. See Note [encoded parameters].
 */
export type ParameterEncoding = HostEncoding | DeviceEncoding | BlockEncoding;

/** Options of an encoded parameter: how its bytes become values, and where the bytes come from. */
export interface EncodedParameterOptions {
  readonly encoding: HostEncoding | DeviceEncoding;
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
  const { blocks } = parameter;
  if (blocks !== undefined) {
    const byteLength = blocksByteLength(blocks.type, parameter.size);
    return { decodesOn: 'use', format: blocks.type, byteLength };
  }
  return parameter instanceof EncodedParameter ? parameter.encoding : undefined;
}

/** Makes ops decode a parameter in blocks to another dtype. */
export function decodeTo(parameter: Tensor, dtype: DType): void {
  const { storage, offset, blocks } = parameter;
  if (isFloat(dtype)) {
    parameter.rebind(storage, offset, { ...blocks!, dtype });
  }
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

/** A run of the words of a parameter. */
export interface WordRange {
  readonly start: number;
  readonly length: number;
}

/**
 * The bytes of some words of an encoded parameter: from its source, from its own storage or, where
 * it is deferred, from its recipe. Zeros stand for values that are to be loaded.
 */
export async function readEncoded(parameter: Tensor, words: WordRange): Promise<Uint8Array> {
  const { start, length } = words;
  if (parameter.blocks === undefined) {
    const { encoding, read } = parameter as EncodedParameter;
    const bytes = new Uint8Array(length * 4);
    const end = Math.min((start + length) * 4, encoding!.byteLength);
    const words = await read?.(start * 4, end - start * 4);
    bytes.set(words ?? []);
    return bytes;
  }
  const recipe = recipeOf(parameter);
  const { isFilled } = parameter.storage;
  if (parameter.device.backend.isDry === true || (recipe === undefined && !isFilled)) {
    return new Uint8Array(length * 4);
  }
  if (recipe === undefined) {
    return parameter.storage.read((parameter.offset + start) * 4, length * 4);
  }
  return encodedWords(parameter, words, (first, count) =>
    readDrawn(parameter.device, count, (into) => drawInto(recipe, into, first)),
  );
}

/** Draws numbers on the device and reads them. */
async function readDrawn(
  device: Device,
  count: number,
  draw: (into: Tensor) => void,
): Promise<Float32Array> {
  const drawn = device.storage(count, 'f32', 'staging');
  try {
    drawn.fill();
    draw(new Tensor(drawn, [count]));
    return toF32Array(await drawn.read(0, count * byteSize('f32')), 'f32');
  } finally {
    drawn.release();
  }
}

/**
 * Encodes the blocks in which some words of a parameter lie, and gives the bytes of these words.
 * @param numbers reads `count` of the parameter's numbers from `first` on
 */
export async function encodedWords(
  { blocks, size }: { readonly blocks?: Pick<Blocks, 'type'> | undefined; readonly size: number },
  { start, length }: WordRange,
  numbers: (first: number, count: number) => Promise<Float32Array>,
): Promise<Uint8Array> {
  const { type } = blocks!;
  const { elements, bytes } = BLOCK_SIZES[type];
  const output = new Uint8Array(length * 4);
  const begin = Math.floor((start * 4) / bytes);
  const end = Math.min(size / elements, Math.ceil(((start + length) * 4) / bytes));
  const atOnce = ENCODED_NUMBERS / elements;
  for (let block = begin; block < end; block += atOnce) {
    const count = Math.min(atOnce, end - block);
    const encoded = encodeBlocks(type, await numbers(block * elements, count * elements));
    // The first block may begin before the words, and the last one may end behind them.
    const at = block * bytes - start * 4;
    const from = Math.max(0, -at);
    output.set(encoded.subarray(from, Math.min(encoded.length, output.length - at)), at + from);
  }
  return output;
}

/** Whether a parameter's bytes are still with their source. */
export function isEncodedElsewhere(parameter: Tensor): boolean {
  return parameter instanceof EncodedParameter && parameter.read !== undefined;
}

/** Releases a parameter's source of bytes. From here on a wrapper has them. */
export function dropEncoded(parameter: Tensor): void {
  if (parameter instanceof EncodedParameter) {
    parameter.read = undefined;
  }
}
