// Reductions over the middle axis of [outer, dim, inner].

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import type { Open } from './elements.js';

type Kind = KernelCalls['reduce']['kind'];

const START: Readonly<Record<Kind, number>> = {
  sum: 0,
  mean: 0,
  max: Number.NEGATIVE_INFINITY,
  min: Number.POSITIVE_INFINITY,
};

export function reduce(call: KernelCalls['reduce'], open: Open): void {
  const { kind, outer, dim, inner } = call;
  const x = open(call.x); // [outer, dim, inner]
  const out = open(call.out); // [outer, inner]
  const start = ofKind('reduce', START, kind);
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < inner; i++) {
      let result = start;
      for (let d = 0; d < dim; d++) {
        const value = x.get((o * dim + d) * inner + i);
        if (kind === 'max') {
          result = Math.max(result, value);
        } else if (kind === 'min') {
          result = Math.min(result, value);
        } else {
          result += value;
        }
      }
      out.set(o * inner + i, kind === 'mean' ? result / dim : result);
    }
  }
}

export function extremumBackward(call: KernelCalls['extremumBackward'], open: Open): void {
  const { outer, dim, inner } = call;
  const x = open(call.x);
  const y = open(call.y);
  const dy = open(call.dy);
  const out = open(call.out);
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < inner; i++) {
      const at = (d: number) => (o * dim + d) * inner + i;
      const extremum = y.get(o * inner + i);
      let count = 0;
      for (let d = 0; d < dim; d++) {
        if (x.get(at(d)) === extremum) {
          count += 1;
        }
      }
      for (let d = 0; d < dim; d++) {
        const isHit = x.get(at(d)) === extremum;
        const elsewhere = Number.isNaN(extremum) ? Number.NaN : 0;
        out.set(at(d), isHit ? dy.get(o * inner + i) / count : elsewhere);
      }
    }
  }
}
