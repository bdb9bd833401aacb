// Which flat tensors an optimizer steps, and which of their elements belong to which parameter
// group. A plain parameter is a flat of its own. Parameters that are sharded or packed into one
// flat are stepped by one kernel call.

import { isFloat, type Segment, type ShardPiece, type Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../../errors.js';
import { alignElements, type FlatPlace } from './flat-layout.js';

/** The part of a flat that is one parameter's. */
export interface FlatMember {
  readonly param: Tensor;
  readonly start: number;
  readonly length: number;
  /** The index of its parameter group. */
  readonly group: number;
}

export interface FlatPlan {
  readonly flat: Tensor;
  /** Its members, in ascending order of start. */
  readonly members: readonly FlatMember[];
  /**
   * Remembered results of chooseMembers. The key is the text of its argument, such as '0,0,,1' for
   * four members of which the third stays.
   */
  readonly choices: Map<string, StepChoice>;
}

/**
 * The elements that a step moves, in the form that kernels take. The arrays are made once, so
 * kernels can recognize them by identity.
 */
export interface StepChoice {
  /** Runs of elements with the number of their step group. Neighbors of one group are merged. */
  readonly segments: readonly Segment[];
  /** Segments of parts of the flat that were asked for before. The key is `${start}:${length}`. */
  readonly cuts: Map<string, readonly Segment[]>;
}

/** How many choices a plan remembers. A model whose forwards take different branches has a few. */
const MAX_CHOICES = 16;

/**
 * Groups parameters by flat, in the order in which flats first appear.
 * @throws {OptimizerError} for a parameter that is given twice, and for one whose dtype is not a
 * float
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
    return { flat, members: list, choices: new Map() };
  });
}

/**
 * The segments of those members that a step moves.
 * @param groups for each member the number of its step group, or undefined where it stays
 */
export function chooseMembers(
  { members, choices }: FlatPlan,
  groups: readonly (number | undefined)[],
): StepChoice {
  const key = groups.join();
  let choice = choices.get(key);
  if (choice === undefined) {
    choice = { segments: merge(members, groups), cuts: new Map() };
    if (choices.size === MAX_CHOICES) {
      choices.clear();
    }
    choices.set(key, choice);
  }
  return choice;
}

/**
 * The segments within a part of the flat, with starts counted from the part's. Equal parts give the
 * same array.
 */
export function segmentsIn(
  { segments, cuts }: StepChoice,
  { start, length }: { readonly start: number; readonly length: number },
): readonly Segment[] {
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

/**
 * Where an optimizer finds a parameter: in the flat that it was packed or sharded into, or else as
 * a flat of its own.
 */
export function pieceOf(param: Tensor): ShardPiece {
  if (param.piece !== undefined) {
    return param.piece;
  }
  const flat = param.blocks?.words ?? param;
  return { flat, start: 0, length: flat.size };
}

/** The distinct flats of these parameters, in order. */
export function flatsOf(parameters: Iterable<Tensor>): Tensor[] {
  const flats = new Set<Tensor>();
  for (const parameter of parameters) {
    flats.add(pieceOf(parameter).flat);
  }
  return [...flats];
}

function merge(members: readonly FlatMember[], groups: readonly (number | undefined)[]): Segment[] {
  const segments: Segment[] = [];
  for (const [i, { start, length }] of members.entries()) {
    const group = groups[i];
    if (length === 0 || group === undefined) {
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

/**
 * The places of these parameters' elements in each flat. Neighbors with nothing but padding between
 * them are one place.
 */
export function placesByFlat(parameters: Iterable<Tensor>): Map<Tensor, FlatPlace[]> {
  const flats = new Map<Tensor, FlatPlace[]>();
  const pieces = [...new Set(parameters)].map(pieceOf).filter(({ length }) => length > 0);
  pieces.sort((a, b) => a.start - b.start);
  for (const { flat, start, length } of pieces) {
    const places = flats.get(flat) ?? [];
    flats.set(flat, places);
    const last = places.at(-1);
    const end = last && last.start + last.length;
    if (end === start || (end !== undefined && alignElements(end) === start)) {
      places[places.length - 1] = { start: last!.start, length: start + length - last!.start };
    } else {
      places.push({ start, length });
    }
  }
  return flats;
}

/** How error messages refer to a parameter. */
export function nameOf(param: Tensor): string {
  return param.name === '' ? `a parameter [${param.shape.join(', ')}]` : `'${param.name}'`;
}
