// The layers of encoders as nodes of a graph, in the three types of files.

import { MICROSOFT, type OnnxGraph } from './onnx-graph.js';
import { ZERO } from './quantize.js';
import { type FloatType, floats, integers, type ModelWeights } from './weights.js';

/** How a file stores a model's numbers. */
export type OnnxDType = 'f32' | 'f16' | 'q8';

/** The numbers of a row that share a scale, as in ggml's q8_0 and in other exports. */
const BLOCK = 32;
const BITS = 8;
/**
 * onnxruntime may round activations, too, 32 of them with a scale. Where the processor has products
 * of such numbers, a short text takes an eighth of the time. In a model of MiniLM's size the cosine
 * with f32 was 0.99980 with it and 0.99986 without.
 */
const INT8 = 4;

/** Adds layers to a graph. Each takes the names of values and returns that of its result. */
export class LayerNodes {
  readonly graph: OnnxGraph;
  readonly weights: ModelWeights;
  readonly dtype: OnnxDType;
  /** The type of the values between the layers. */
  readonly floatType: FloatType;

  constructor(graph: OnnxGraph, weights: ModelWeights, dtype: OnnxDType) {
    this.graph = graph;
    this.weights = weights;
    this.dtype = dtype;
    this.floatType = floatTypeOf(dtype);
  }

  /** The rows of a table [rows, width] that ids choose. */
  lookUp(ids: string, path: string, shape: readonly [number, number]): string {
    const { graph } = this;
    const name = `${path}.weight`;
    const gather = (table: string, from: string) =>
      graph.node('Gather', [table, ids], { path: `${path}${from}`, attributes: { axis: 0 } });
    if (this.dtype !== 'q8') {
      return gather(graph.constant(this.weights.plain(name, shape)), '');
    }
    const { words, scales } = this.weights.quantized(name, shape, shape[1]);
    // A row is one block, so its words are as many as its numbers.
    const table = graph.constant({ ...words, shape });
    const chosen = graph.cast(gather(table, '.words'), 'f32', { path });
    const centered = graph.node('Sub', [chosen, this.#number('zero_word', ZERO)], { path });
    return graph.node('Mul', [centered, gather(graph.constant(scales), '.scales')], { path });
  }

  /** A table [rows, width], its floats as they are. */
  table(path: string, shape: readonly [number, number]): string {
    return this.graph.constant(this.weights.plain(`${path}.weight`, shape));
  }

  /** x [..., in] to [..., out]. */
  linear(x: string, path: string, shape: readonly [out: number, inner: number]): string {
    const { graph, weights } = this;
    const product = this.#product(x, path, shape);
    const bias = graph.constant(weights.plain(`${path}.bias`, [shape[0]]));
    return graph.node('Add', [product, bias], { path });
  }

  #product(x: string, path: string, shape: readonly [number, number]): string {
    const { graph, weights } = this;
    const name = `${path}.weight`;
    if (this.dtype !== 'q8') {
      return graph.node('MatMul', [x, graph.constant(weights.transposed(name, shape))], { path });
    }
    const { words, scales } = weights.quantized(name, shape, BLOCK);
    const [N, K] = shape;
    return graph.node('MatMulNBits', [x, graph.constant(words), graph.constant(scales)], {
      path,
      domain: MICROSOFT,
      attributes: { N, K, bits: BITS, block_size: BLOCK, accuracy_level: INT8 },
    });
  }

  layerNorm(x: string, path: string, { width, eps }: { width: number; eps: number }): string {
    const { graph, weights } = this;
    const vector = (name: string) => graph.constant(weights.plain(`${path}.${name}`, [width]));
    return graph.node('LayerNormalization', [x, vector('weight'), vector('bias')], {
      path,
      attributes: { axis: -1, epsilon: { float: eps } },
    });
  }

  /** GELU by erf, in the order of nodes that onnxruntime fuses into one. */
  gelu(x: string, path: string): string {
    const { graph } = this;
    const divided = graph.node('Div', [x, this.#number('sqrt_2', Math.SQRT2)], { path });
    const erf = graph.node('Erf', [divided], { path });
    return this.#gated(x, erf, path);
  }

  /** GELU by its approximation with tanh. */
  geluTanh(x: string, path: string): string {
    const { graph } = this;
    const times = (a: string, b: string) => graph.node('Mul', [a, b], { path });
    const plus = (a: string, b: string) => graph.node('Add', [a, b], { path });
    const cubic = times(times(x, x), this.#number('gelu_cubic', 0.044715));
    const inner = times(x, plus(cubic, this.#number('one', 1)));
    const scaled = times(inner, this.#number('sqrt_2_by_pi', Math.sqrt(2 / Math.PI)));
    return this.#gated(x, graph.node('Tanh', [scaled], { path }), path);
  }

  /** x * (1 + gate) / 2. */
  #gated(x: string, gate: string, path: string): string {
    const { graph } = this;
    const raised = graph.node('Add', [gate, this.#number('one', 1)], { path });
    const product = graph.node('Mul', [x, raised], { path });
    return graph.node('Mul', [product, this.#number('half', 0.5)], { path });
  }

  scaled(x: string, factor: number, { path, name }: { path: string; name: string }): string {
    return this.graph.node('Mul', [x, this.#number(name, factor)], { path });
  }

  /**
   * What is added to scores [batch, heads, seq, seq]: 0 for a token, and a large negative number
   * for padding, from a mask [batch, seq] of ones and zeros.
   */
  maskScores(mask: string, masked: number): string {
    const { graph } = this;
    const path = 'mask';
    const axes = graph.constant(integers('mask_axes', [1, 2]));
    const wide = graph.node('Unsqueeze', [mask, axes], { path }); // [batch, 1, 1, seq]
    const ones = graph.cast(wide, this.floatType, { path });
    const hidden = graph.node('Sub', [this.#number('one', 1), ones], { path });
    return graph.node('Mul', [hidden, this.#number('masked_score', masked)], { path });
  }

  #number(name: string, value: number): string {
    return this.graph.constant(floats(name, [value], { type: this.floatType }));
  }
}

/** The type of a file's activations, and of its small tensors. */
export function floatTypeOf(dtype: OnnxDType): FloatType {
  return dtype === 'f16' ? 'f16' : 'f32';
}
