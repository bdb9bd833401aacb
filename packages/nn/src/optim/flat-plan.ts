// Which flat tensors an optimizer steps, and which of their elements belong to which parameter
// group. A plain parameter is a flat of its own; parameters sharded or packed into one flat share
// one kernel call.

import { isFloat, type Segment, type ShardPiece, type Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../errors.js';

/** One parameter's part of a flat. */
export interface FlatMember {
  readonly param: Tensor;
  readonly start: number;
  readonly length: number;
  /** Index of the parameter group. */
  readonly group: number;
}

export interface FlatPlan {
  readonly flat: Tensor;
  /** Ascending by start. */
  readonly members: readonly FlatMember[];
  /**
   * Members as the kernels take them, without frozen ones of a shared flat; neighbors of one group
   * merged. Keeps its identity.
   */
  readonly segments: readonly Segment[];
  /** Those of parts that were asked for, by first element and length. */
  readonly cuts: Map<string, readonly Segment[]>;
}

/**
 * Groups parameters by flat, in order of first appearance.
 * @throws {OptimizerError} for a parameter given twice, or one that is not a float
 */
export function planFlats(groups: readonly { readonly params: readonly Tensor[] }[]): FlatPlan[] {
  const members = new Map<Tensor, FlatMember[]>();
  const seen = new Set<Tensor>();
  groups.forEach(({ params }, group) => {
    for (const param of params) {
      if (seen.has(param)) {
        throw new OptimizerError(
          `optimizer: expected each parameter once, got ${nameOf(param)} twice.`,
        );
      }
      seen.add(param);
      const { flat, start, length } = pieceOf(param);
      const list = members.get(flat);
      const member = { param, start, length, group };
      if (list === undefined) {
        members.set(flat, [member]);
      } else {
        list.push(member);
      }
    }
  });
  return [...members].map(([flat, list]) => {
    if (!isFloat(flat.dtype)) {
      throw new OptimizerError(
        `optimizer: expected float parameters, got ${nameOf(list[0]!.param)} in ${flat.dtype}.`,
      );
    }
    list.sort((a, b) => a.start - b.start);
    return { flat, members: list, segments: merge(list), cuts: new Map() };
  });
}

/** A plan's segments in a part of its flat, as places in the part. They keep their identity. */
export function segmentsOf(
  { flat, segments, cuts }: FlatPlan,
  { start, length }: { readonly start: number; readonly length: number },
): readonly Segment[] {
  if (length === flat.size) {
    return segments;
  }
  const key = `${start}:${length}`;
  let cut = cuts.get(key);
  if (cut === undefined) {
    cut = segments.flatMap((segment) => {
      const from = Math.max(segment.start, start);
      const to = Math.min(segment.start + segment.length, start + length);
      return from < to ? [{ ...segment, start: from - start, length: to - from }] : [];
    });
    cuts.set(key, cut);
  }
  return cut;
}

/** Where the optimizer finds a parameter. */
export function pieceOf(param: Tensor): ShardPiece {
  return param.piece ?? { flat: param, start: 0, length: param.size };
}

/** The distinct flats of parameters, in order. */
export function flatsOf(parameters: Iterable<Tensor>): Tensor[] {
  const flats = new Set<Tensor>();
  for (const parameter of parameters) {
    flats.add(pieceOf(parameter).flat);
  }
  return [...flats];
}

function merge(members: readonly FlatMember[]): Segment[] {
  const segments: Segment[] = [];
  for (const { param, start, length, group } of members) {
    // A flat's gradient has zeros for a frozen member, which decay and momentum would still move.
    const isFrozen = param.piece !== undefined && !param.requiresGrad;
    if (length === 0 || isFrozen) {
      continue;
    }
    const last = segments.at(-1);
    if (last !== undefined && last.group === group && last.start + last.length === start) {
      segments[segments.length - 1] = { ...last, length: last.length + length };
    } else {
      segments.push({ start, length, group });
    }
  }
  return segments;
}

/** How an error calls a parameter. */
export function nameOf(param: Tensor): string {
  return param.name === '' ? `a parameter [${param.shape.join(', ')}]` : `'${param.name}'`;
}
