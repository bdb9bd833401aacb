// Counts the results of norm kernels, and packs their spans into the words that devices read.

import { NORM_NODE_ELEMENTS, type Span } from './kernel-calls/norm.js';

/** Returns the number of results of normNodes for one span. */
function nodesIn(span: Span): number {
  return Math.ceil(span.length / NORM_NODE_ELEMENTS);
}

/** Returns the number of results of normNodes for all spans. */
export function numNormNodes(spans: readonly Span[]): number {
  return spans.reduce((sum, span) => sum + nodesIn(span), 0);
}

/**
 * Returns start, length and first node of each span. Spans of 5 and then 7 elements, from 0 on,
 * give [0, 5, 0, 5, 7, 1].
 */
export function spanWords(spans: readonly Span[]): Uint32Array {
  const words = new Uint32Array(3 * spans.length);
  let firstNode = 0;
  spans.forEach((span, i) => {
    words.set([span.start, span.length, firstNode], 3 * i);
    firstNode += nodesIn(span);
  });
  return words;
}
