// Reads an ONNX file by the numbers of onnx.proto, without what wrote it.

import { f16ToF32 } from '@shardweave/dtypes';
import type { ModelFile } from '@shardweave/nn';

/** A tensor's elements as numbers, row-major. */
export interface Numbers {
  readonly shape: readonly number[];
  readonly values: readonly number[];
}

export interface ReadNode {
  readonly operator: string;
  readonly domain: string;
  readonly inputs: readonly string[];
  readonly output: string;
  readonly attributes: Readonly<Record<string, number | readonly number[]>>;
}

export interface ReadGraph {
  readonly version: number;
  /** The version of the operators of each domain. */
  readonly opsets: Readonly<Record<string, number>>;
  readonly nodes: readonly ReadNode[];
  readonly tensors: ReadonlyMap<string, Numbers & { readonly type: number }>;
  readonly inputs: readonly ReadValue[];
  readonly outputs: readonly ReadValue[];
}

export interface ReadValue {
  readonly name: string;
  readonly type: number;
  readonly shape: readonly (number | string)[];
}

type Fields = ReadonlyMap<number, readonly (number | Uint8Array)[]>;

/** Returns all bytes of a file. */
export async function bytesOf(file: Pick<ModelFile, 'pieces'>): Promise<Buffer> {
  const all: Uint8Array[] = [];
  for await (const piece of file.pieces()) {
    all.push(Uint8Array.from(piece));
  }
  return Buffer.concat(all);
}

export function readOnnx(bytes: Uint8Array): ReadGraph {
  const model = fieldsOf(bytes);
  const graph = fieldsOf(one(model, 7));
  return {
    version: integer(model, 1),
    opsets: Object.fromEntries(
      nested(model, 8).map((opset) => [text(opset, 1), integer(opset, 2)]),
    ),
    nodes: nested(graph, 1).map((node) => ({
      operator: text(node, 4),
      domain: text(node, 7),
      inputs: texts(node, 1),
      output: text(node, 2),
      attributes: Object.fromEntries(nested(node, 5).map(attributeOf)),
    })),
    tensors: new Map(nested(graph, 5).map((tensor) => [text(tensor, 8), tensorOf(tensor)])),
    inputs: nested(graph, 11).map(declaredOf),
    outputs: nested(graph, 12).map(declaredOf),
  };
}

function fieldsOf(bytes: Uint8Array): Fields {
  const fields = new Map<number, (number | Uint8Array)[]>();
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = bytes[at++]!;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) {
        return Number(BigInt.asIntN(64, value));
      }
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    const found = fields.get(tag >> 3) ?? [];
    fields.set(tag >> 3, found);
    if (tag % 8 === 0) {
      found.push(varint());
    } else if (tag % 8 === 2) {
      const byteLength = varint();
      found.push(bytes.subarray(at, at + byteLength));
      at += byteLength;
    } else {
      found.push(view.getFloat32(at, true));
      at += 4;
    }
  }
  return fields;
}

const one = (fields: Fields, field: number) =>
  (fields.get(field)?.[0] ?? new Uint8Array(0)) as Uint8Array;
const integer = (fields: Fields, field: number) => (fields.get(field)?.[0] ?? 0) as number;
const integers = (fields: Fields, field: number) => (fields.get(field) ?? []) as readonly number[];
const texts = (fields: Fields, field: number) =>
  (fields.get(field) ?? []).map((bytes) => new TextDecoder().decode(bytes as Uint8Array));
const text = (fields: Fields, field: number) => texts(fields, field)[0] ?? '';
const nested = (fields: Fields, field: number) =>
  (fields.get(field) ?? []).map((bytes) => fieldsOf(bytes as Uint8Array));

function attributeOf(fields: Fields): [string, number | readonly number[]] {
  const field = { 1: 2, 2: 3, 7: 8 }[integer(fields, 20)]!;
  const values = integers(fields, field);
  return [text(fields, 1), field === 8 ? values : values[0]!];
}

/** The elements are read when they are asked for: few tests ask for those of all tensors. */
function tensorOf(fields: Fields): Numbers & { readonly type: number } {
  const type = integer(fields, 2);
  let values: readonly number[] | undefined;
  return {
    type,
    shape: integers(fields, 1),
    get values() {
      values ??= numbersOf(type, Uint8Array.from(one(fields, 9)).buffer);
      return values;
    },
  };
}

function numbersOf(type: number, buffer: ArrayBuffer): readonly number[] {
  switch (type) {
    case 1:
      return [...new Float32Array(buffer)];
    case 7:
      return [...new BigInt64Array(buffer)].map(Number);
    case 10:
      return [...new Uint16Array(buffer)].map(f16ToF32);
    default:
      return [...new Uint8Array(buffer)];
  }
}

function declaredOf(fields: Fields): ReadValue {
  const tensor = fieldsOf(one(fieldsOf(one(fields, 2)), 1));
  const dimensions = nested(fieldsOf(one(tensor, 2)), 1);
  const shape = dimensions.map((size) => (size.has(2) ? text(size, 2) : integer(size, 1)));
  return { name: text(fields, 1), type: integer(tensor, 1), shape };
}
