// BERT as a graph of ONNX, with the inputs and outputs of other programs' exports: ids, mask and
// token types [batch, seq] in, and the rows of the last layer or a classifier's logits out.

import type { EncoderConfig } from '@shardweave/nn/embedding';
import { LayerNodes, type OnnxDType } from './layers.js';
import { OnnxGraph } from './onnx-graph.js';
import { integers, type ModelWeights } from './weights.js';

const ROWS = ['batch_size', 'sequence_length'] as const;
/**
 * What is added to the scores of padding. Its exponential is zero beside any score, and f16 holds
 * its sum with one.
 */
const MASKED = -30_000;

/** The graph of an encoder, with a pooler and a classifier where `labels` says of how many. */
export function encoderGraph(
  config: EncoderConfig,
  options: {
    readonly weights: ModelWeights;
    readonly dtype: OnnxDType;
    readonly labels?: number | undefined;
  },
): OnnxGraph {
  const { weights, dtype, labels } = options;
  const graph = new OnnxGraph();
  const nodes = new LayerNodes(graph, weights, dtype);
  const input = (name: string) => graph.input({ name, type: 'i64', shape: ROWS });
  const ids = input('input_ids');
  const mask = nodes.maskScores(input('attention_mask'), MASKED);
  let rows = embeddings(nodes, config, { ids, types: input('token_type_ids') });
  for (let i = 0; i < config.num_hidden_layers; i++) {
    rows = block(nodes, config, { path: `encoder.layer.${i}`, x: rows, mask });
  }
  const { hidden_size: width } = config;
  if (labels === undefined) {
    graph.output(rows, { name: 'last_hidden_state', type: 'f32', shape: [...ROWS, width] });
  } else {
    const logits = classifier(nodes, rows, { width, labels });
    graph.output(logits, { name: 'logits', type: 'f32', shape: [ROWS[0], labels] });
  }
  return graph;
}

/** The normalized sum of the rows for a token, its position and its type. */
function embeddings(
  nodes: LayerNodes,
  config: EncoderConfig,
  { ids, types }: { readonly ids: string; readonly types: string },
): string {
  const { graph } = nodes;
  const { hidden_size: width } = config;
  const path = 'embeddings';
  const words = `${path}.word_embeddings`;
  const word = nodes.lookUp(ids, words, [config.vocab_size, width]); // [batch, seq, width]
  const typeTable = nodes.table(`${path}.token_type_embeddings`, [config.type_vocab_size, width]);
  const type = graph.node('Gather', [typeTable, types], { path, attributes: { axis: 0 } });
  const positions = nodes.table(`${path}.position_embeddings`, [
    config.max_position_embeddings,
    width,
  ]);
  const [zero, one] = [0, 1].map((value) => graph.constant(integers(`at_${value}`, [value])));
  const shape = graph.node('Shape', [ids], { path });
  const seq = graph.node('Gather', [shape, one!], { path, attributes: { axis: 0 } });
  const position = graph.node('Slice', [positions, zero!, seq, zero!], { path }); // [seq, width]
  const sum = graph.node('Add', [graph.node('Add', [word, type], { path }), position], { path });
  return norm(nodes, sum, { path: `${path}.LayerNorm`, config });
}

/** x [batch, seq, width] to the same shape. */
function block(
  nodes: LayerNodes,
  config: EncoderConfig,
  { path, x, mask }: { readonly path: string; readonly x: string; readonly mask: string },
): string {
  const { hidden_size: width, intermediate_size: inner } = config;
  const attention = `${path}.attention`;
  const context = attend(nodes, config, { path: `${attention}.self`, x, mask });
  const mixed = addAndNorm(nodes, config, {
    path: `${attention}.output`,
    x: nodes.linear(context, `${attention}.output.dense`, [width, width]),
    residual: x,
  });
  const up = `${path}.intermediate`;
  const raised = nodes.linear(mixed, `${up}.dense`, [inner, width]);
  const active = config.hidden_act === 'gelu' ? nodes.gelu(raised, up) : nodes.geluTanh(raised, up);
  return addAndNorm(nodes, config, {
    path: `${path}.output`,
    x: nodes.linear(active, `${path}.output.dense`, [width, inner]),
    residual: mixed,
  });
}

/** Every token's sum of all tokens' values, weighted by the softmax of their scores. */
function attend(
  nodes: LayerNodes,
  config: EncoderConfig,
  { path, x, mask }: { readonly path: string; readonly x: string; readonly mask: string },
): string {
  const { graph } = nodes;
  const { hidden_size: width, num_attention_heads: heads } = config;
  const headDim = width / heads;
  // A size of zero in a shape means that it stays as it is.
  const split = graph.constant(integers('heads_shape', [0, 0, heads, headDim]));
  const merge = graph.constant(integers('rows_shape', [0, 0, width]));
  const turn = (value: string, perm: readonly number[]) =>
    graph.node('Transpose', [value], { path, attributes: { perm } });
  const project = (name: string, perm: readonly number[]) => {
    const projected = nodes.linear(x, `${path}.${name}`, [width, width]);
    return turn(graph.node('Reshape', [projected, split], { path }), perm);
  };
  const q = project('query', [0, 2, 1, 3]); // [batch, heads, seq, headDim]
  const k = project('key', [0, 2, 3, 1]); // [batch, heads, headDim, seq]
  const v = project('value', [0, 2, 1, 3]);
  // The scale comes before the product, which could be beyond f16's range without it.
  const scaled = nodes.scaled(q, 1 / Math.sqrt(headDim), { path, name: 'query_scale' });
  const scores = graph.node('MatMul', [scaled, k], { path });
  const visible = graph.node('Add', [scores, mask], { path });
  const shares = graph.node('Softmax', [visible], { path, attributes: { axis: -1 } });
  const context = turn(graph.node('MatMul', [shares, v], { path }), [0, 2, 1, 3]);
  return graph.node('Reshape', [context, merge], { path });
}

function addAndNorm(
  nodes: LayerNodes,
  config: EncoderConfig,
  { path, x, residual }: { readonly path: string; readonly x: string; readonly residual: string },
): string {
  const sum = nodes.graph.node('Add', [x, residual], { path });
  return norm(nodes, sum, { path: `${path}.LayerNorm`, config });
}

function norm(
  nodes: LayerNodes,
  x: string,
  { path, config }: { readonly path: string; readonly config: EncoderConfig },
): string {
  return nodes.layerNorm(x, path, { width: config.hidden_size, eps: config.layer_norm_eps });
}

/** Rows [batch, seq, width] to logits [batch, labels], from each text's first token. */
function classifier(
  nodes: LayerNodes,
  rows: string,
  { width, labels }: { readonly width: number; readonly labels: number },
): string {
  const { graph } = nodes;
  const path = 'pooler';
  const at = graph.constant(integers('first_token', 0));
  const first = graph.node('Gather', [rows, at], { path, attributes: { axis: 1 } });
  const pooled = nodes.linear(first, `${path}.dense`, [width, width]);
  const active = graph.node('Tanh', [pooled], { path });
  return nodes.linear(active, 'classifier', [labels, width]);
}
