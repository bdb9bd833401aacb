// A graph of ONNX as it is being made, and the bytes of its file. The numbers of fields and types
// are those of onnx.proto. Weights come after the nodes, so that all of the graph is one piece.

import { ProtoMessage, type StreamedBytes } from './proto-message.js';

/** ONNX's element types that encoders need. */
export type OnnxType = 'f32' | 'f16' | 'u8' | 'i64';

/** An input or a result of a graph. A dimension without a size has a name. */
export interface OnnxValue {
  readonly name: string;
  readonly type: OnnxType;
  readonly shape: readonly (number | string)[];
}

/** A constant tensor of a graph. */
export interface OnnxTensor extends OnnxValue, StreamedBytes {
  readonly shape: readonly number[];
}

type Attribute = number | readonly number[] | { readonly float: number };

export interface OnnxNodeOptions {
  /** The part of the model that it belongs to; its result is named after both. */
  readonly path: string;
  readonly attributes?: Readonly<Record<string, Attribute>>;
  /** Where the operator comes from. Default: ONNX itself. */
  readonly domain?: string;
}

interface OnnxNode extends OnnxNodeOptions {
  readonly name: string;
  readonly operator: string;
  readonly inputs: readonly string[];
}

/** The version that came with opset 17, which has LayerNormalization. */
const IR_VERSION = 8;
const OPSET = 17;
/** Operators of onnxruntime alone. */
export const MICROSOFT = 'com.microsoft';

const TYPE_IDS: Readonly<Record<OnnxType, number>> = { f32: 1, u8: 2, i64: 7, f16: 10 };
const ATTRIBUTE_TYPES = { float: 1, int: 2, ints: 7 } as const;

export class OnnxGraph {
  readonly #inputs: OnnxValue[] = [];
  readonly #outputs: OnnxValue[] = [];
  readonly #nodes: OnnxNode[] = [];
  readonly #tensors = new Map<string, OnnxTensor>();
  readonly #names = new Set<string>();

  /** Declares an input, and returns its name. */
  input(value: OnnxValue): string {
    this.#inputs.push(value);
    return value.name;
  }

  /** Declares that a value is a result of the graph under a name, and casts it to the type. */
  output(from: string, value: OnnxValue): void {
    this.#outputs.push(value);
    const attributes = { to: TYPE_IDS[value.type] };
    this.#nodes.push({ name: value.name, operator: 'Cast', inputs: [from], path: '', attributes });
  }

  /** Adds a constant unless one of its name is there, and returns the name. */
  constant(tensor: OnnxTensor): string {
    if (!this.#tensors.has(tensor.name)) {
      this.#tensors.set(tensor.name, tensor);
    }
    return tensor.name;
  }

  /** Adds a node with one result, and returns the result's name. */
  node(operator: string, inputs: readonly string[], options: OnnxNodeOptions): string {
    const base = `/${options.path.replaceAll('.', '/')}/${operator}`;
    let name = base;
    for (let i = 1; this.#names.has(name); i++) {
      name = `${base}_${i}`;
    }
    this.#names.add(name);
    this.#nodes.push({ ...options, name, operator, inputs });
    return name;
  }

  /** Adds a node that converts elements to a type, and returns its result's name. */
  cast(input: string, to: OnnxType, { path }: Pick<OnnxNodeOptions, 'path'>): string {
    return this.node('Cast', [input], { path, attributes: { to: TYPE_IDS[to] } });
  }

  /** The file of the graph. */
  file(): StreamedBytes {
    const graph = new ProtoMessage();
    for (const node of this.#nodes) {
      graph.nested(1, nodeMessage(node));
    }
    graph.text(2, 'encoder');
    for (const input of this.#inputs) {
      graph.nested(11, valueMessage(input));
    }
    for (const output of this.#outputs) {
      graph.nested(12, valueMessage(output));
    }
    for (const tensor of this.#tensors.values()) {
      graph.nested(5, tensorMessage(tensor));
    }
    const model = new ProtoMessage().integer(1, IR_VERSION).text(2, 'shardweave');
    model.nested(8, opsetMessage('', OPSET));
    if (this.#nodes.some(({ domain }) => domain === MICROSOFT)) {
      model.nested(8, opsetMessage(MICROSOFT, 1));
    }
    return model.nested(7, graph);
  }
}

function opsetMessage(domain: string, version: number): ProtoMessage {
  return new ProtoMessage().text(1, domain).integer(2, version);
}

function nodeMessage({ name, operator, inputs, attributes = {}, domain }: OnnxNode): ProtoMessage {
  const message = new ProtoMessage();
  for (const input of inputs) {
    message.text(1, input);
  }
  message.text(2, name).text(3, name).text(4, operator);
  for (const [key, value] of Object.entries(attributes)) {
    message.nested(5, attributeMessage(key, value));
  }
  return domain === undefined ? message : message.text(7, domain);
}

function attributeMessage(name: string, value: Attribute): ProtoMessage {
  const message = new ProtoMessage().text(1, name);
  if (typeof value === 'number') {
    return message.integer(3, value).integer(20, ATTRIBUTE_TYPES.int);
  }
  if ('float' in value) {
    return message.float(2, value.float).integer(20, ATTRIBUTE_TYPES.float);
  }
  for (const each of value) {
    message.integer(8, each);
  }
  return message.integer(20, ATTRIBUTE_TYPES.ints);
}

function valueMessage({ name, type, shape }: OnnxValue): ProtoMessage {
  const dimensions = new ProtoMessage();
  for (const size of shape) {
    const dimension = new ProtoMessage();
    dimensions.nested(
      1,
      typeof size === 'number' ? dimension.integer(1, size) : dimension.text(2, size),
    );
  }
  const tensor = new ProtoMessage().integer(1, TYPE_IDS[type]).nested(2, dimensions);
  return new ProtoMessage().text(1, name).nested(2, new ProtoMessage().nested(1, tensor));
}

function tensorMessage(tensor: OnnxTensor): ProtoMessage {
  const message = new ProtoMessage();
  for (const size of tensor.shape) {
    message.integer(1, size);
  }
  message.integer(2, TYPE_IDS[tensor.type]).text(8, tensor.name);
  return message.nested(9, tensor);
}
