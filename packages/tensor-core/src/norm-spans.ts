// The spans of norm kernels as the words that devices read.

import { NORM_NODE_ELEMENTS, type Span } from './kernel-calls/updates.js';

/** Results of normNodes for one span. */
function nodesIn(span: Span): number {
  return Math.ceil(span.length / NORM_NODE_ELEMENTS);
}

/** Results of normNodes. */
export function numNormNodes(spans: readonly Span[]): number {
  return spans.reduce((sum, span) => sum + nodesIn(span), 0);
}

/** start, length and first node of each span. */
export function spanWords(spans: readonly Span[]): Uint32Array {
  const words = new Uint32Array(3 * spans.length);
  let firstNode = 0;
  spans.forEach((span, i) => {
    words.set([span.start, span.length, firstNode], 3 * i);
    firstNode += nodesIn(span);
  });
  return words;
}
