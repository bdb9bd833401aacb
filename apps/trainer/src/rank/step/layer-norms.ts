// The gradients' norms by groups of layers, which a step's norm has on its way.

import { gradNorm, type Module } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';

/** The steps of a run whose lines have groups, at most; plots need no more. */
export const MOST_TOLD = 200;
/** The same for updates, whose passes cost a few steps of AdamW. */
const MOST_UPDATES_TOLD = 50;
/** The names of models around their layers, as in transformer.h.0.attn.c_proj.weight. */
const AROUND = new Set(['transformer', 'model', 'bert', 'encoder', 'base_model']);

/** Whether the line of step `step` (from 1) tells groups. */
export function tellsLayers(step: number, steps: number): boolean {
  return step === 1 || step % Math.ceil(steps / MOST_TOLD) === 0;
}

/** Whether it tells their updates, too: in every fourth of those lines in a long run. */
export function tellsUpdates(step: number, steps: number): boolean {
  const every = Math.ceil(steps / MOST_TOLD);
  return step === 1 || step % (every * Math.ceil(steps / every / MOST_UPDATES_TOLD)) === 0;
}

/** The group of a parameter: its block, such as h.0, or a layer beside blocks, such as wte. */
export function groupOf(name: string): string {
  const parts = name.split('.');
  const [first = '', second = ''] = parts.slice(parts.findIndex((part) => !AROUND.has(part)));
  return /^\d+$/.test(second) ? `${first}.${second}` : first;
}

/** The group of each parameter, by the first of its names; of those in `only`, if it is given. */
export function groupsOf(
  module: Module,
  only?: { has(parameter: Tensor): boolean },
): ReadonlyMap<Tensor, string> {
  const groups = new Map<Tensor, string>();
  for (const [name, parameter] of module.namedParameters()) {
    if (!groups.has(parameter) && only?.has(parameter) !== false) {
      groups.set(parameter, groupOf(name));
    }
  }
  return groups;
}

/** The norm of all gradients, and of those of each group. Collective. */
export async function layerNorms(
  module: Module,
): Promise<{ readonly norm: number; readonly groups: ReadonlyMap<string, number> }> {
  const groups = groupsOf(module);
  const squares = new Map<string, number>();
  const norm = await gradNorm(module, {
    onParameter: (parameter, own) => {
      const group = groups.get(parameter)!;
      squares.set(group, (squares.get(group) ?? 0) + own * own);
    },
  });
  return { norm, groups: new Map([...squares].map(([group, sum]) => [group, Math.sqrt(sum)])) };
}
