// The gradients' norms by groups of layers, which a step's norm has on its way.

import { gradNorm, type Module } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';

/** The steps of a run whose lines have groups, at most; plots need no more. */
export const MOST_TOLD = 200;
/** The names of models around their layers, as in transformer.h.0.attn.c_proj.weight. */
const AROUND = new Set(['transformer', 'model', 'bert', 'encoder', 'base_model']);

/** Whether the line of step `step` (from 1) tells groups. */
export function tellsLayers(step: number, steps: number): boolean {
  return step === 1 || step % Math.ceil(steps / MOST_TOLD) === 0;
}

/** The group of a parameter: its block, such as h.0, or a layer beside blocks, such as wte. */
export function groupOf(name: string): string {
  const parts = name.split('.');
  const [first = '', second = ''] = parts.slice(parts.findIndex((part) => !AROUND.has(part)));
  return /^\d+$/.test(second) ? `${first}.${second}` : first;
}

/** The norm of all gradients, and of those of each group. Collective. */
export async function layerNorms(
  module: Module,
): Promise<{ readonly norm: number; readonly groups: ReadonlyMap<string, number> }> {
  const names = new Map<Tensor, string>();
  for (const [name, parameter] of module.namedParameters()) {
    names.set(parameter, names.get(parameter) ?? name);
  }
  const squares = new Map<string, number>();
  const norm = await gradNorm(module, {
    onParameter: (parameter, own) => {
      const group = groupOf(names.get(parameter)!);
      squares.set(group, (squares.get(group) ?? 0) + own ** 2);
    },
  });
  return { norm, groups: new Map([...squares].map(([group, sum]) => [group, Math.sqrt(sum)])) };
}
