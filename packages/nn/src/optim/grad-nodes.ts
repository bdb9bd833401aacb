// The part of a norm that the gradients on this device contribute: nodes of each parameter's tree,
// see Note [order of a norm]. A kernel reads each flat's gradient once, however many parameters
// share it.

import { pow64 } from '@shardweave/dtypes/float64';
import { type Device, NORM_BLOCK_ELEMENTS, type Span, Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { pieceOf } from '../flat/layout/flat-plan.js';
import { hasGradient } from '../flat/placement.js';
import { eachGradient } from './each-gradient.js';
import { blockRange, DEVICE_LEVEL, type NormNode, type NormValue, normCover } from './norm-tree.js';

/**
 * Where kernels write the nodes of all trained parameters: into one tensor with a slot for each.
 */
export interface NodePlan {
  readonly slotCount: number;
  /** The first slot and the nodes of each parameter, in the order of the list. */
  readonly parts: readonly { readonly slot: number; readonly nodes: readonly NormNode[] }[];
  readonly flats: ReadonlyMap<Tensor, { readonly slot: number; readonly spans: readonly Span[] }>;
}

/**
 * The parameters that a norm counts, each once: those that are trained, and those that still have a
 * gradient from when they were. One without a gradient counts as zeros, so that the order of
 * additions is the same on ranks that have one.
 */
export function normParameters(parameters: Iterable<Tensor>): Tensor[] {
  return [...new Set(parameters)].filter(
    (parameter) => parameter.size > 0 && (parameter.requiresGrad || hasGradient(parameter)),
  );
}

/** Gives each node of these parameters a slot. */
export function planNodes(parameters: readonly Tensor[]): NodePlan {
  const parts: { slot: number; nodes: readonly NormNode[] }[] = [];
  const byFlat = new Map<Tensor, { index: number; start: number; length: number }[]>();
  parameters.forEach((parameter, index) => {
    const { flat, start, length, first = 0 } = pieceOf(parameter);
    const range = blockRange(parameter.size, first, length);
    parts.push({ slot: 0, nodes: normCover(range, DEVICE_LEVEL) });
    const members = byFlat.get(flat) ?? [];
    members.push({ index, start, length });
    byFlat.set(flat, members);
  });
  const flats = new Map<Tensor, { slot: number; spans: Span[] }>();
  let slotCount = 0;
  for (const [flat, members] of byFlat) {
    const slot = slotCount;
    const spans: Span[] = [];
    members.sort((a, b) => a.start - b.start);
    for (const { index, start, length } of members) {
      const part = parts[index]!;
      part.slot = slotCount;
      slotCount += part.nodes.length;
      spans.push(...spansOf(part.nodes, start, length));
    }
    if (spans.length > 0) {
      flats.set(flat, { slot, spans });
    }
  }
  return { slotCount, parts, flats };
}

/**
 * The nodes of one parameter's piece as spans of its flat. Neighboring nodes of DEVICE_LEVEL share
 * one span, because the kernel cuts a span into such nodes itself.
 */
function spansOf(nodes: readonly NormNode[], start: number, length: number): Span[] {
  const spans: { start: number; length: number; isOpen: boolean }[] = [];
  let at = 0;
  for (const { level } of nodes) {
    const size = Math.min(pow64(2, level) * NORM_BLOCK_ELEMENTS, length - at);
    const last = spans.at(-1);
    if (last?.isOpen === true && level === DEVICE_LEVEL) {
      last.length += size;
    } else {
      spans.push({ start: start + at, length: size, isOpen: level === DEVICE_LEVEL });
    }
    at += size;
  }
  return spans;
}

interface NodeTargets {
  /** The gradient of the whole flat. */
  readonly gradient: Tensor;
  readonly slots: Tensor;
  readonly power: number;
}

/** Encodes the nodes of one flat's gradient into their slots. */
export function encodeNodes(
  plan: NodePlan,
  flat: Tensor,
  { gradient, slots, power }: NodeTargets,
): void {
  const part = plan.flats.get(flat);
  if (part === undefined) {
    return;
  }
  const { slot, spans } = part;
  const out = new Tensor(slots.storage, [plan.slotCount - slot], slot).view();
  slots.device.backend.run('normNodes', { x: gradient.view(), out, spans, power });
}

/**
 * Computes nodes of each trained parameter: sums of the magnitudes of its gradient to the power
 * normType, or their maximum for Infinity. Of a sharded parameter they cover this rank's part. A
 * parameter without a gradient gives zeros. It works wherever gradients rest, and waits for the
 * device.
 * @returns the nodes of each parameter, in the order of the list, without duplicates and without
 * parameters that are not trained
 * @throws {NnConfigError} for a normType that is not above 0
 */
export async function gradNodes(
  parameters: Iterable<Tensor>,
  normType: number,
): Promise<NormValue[][]> {
  if (!(normType > 0)) {
    throw new NnConfigError(`gradient norm: expected normType above 0, got ${normType}.`);
  }
  const list = normParameters(parameters);
  const plan = planNodes(list);
  const { parts, slotCount } = plan;
  const values = slotCount === 0 ? new Float32Array() : await read(list[0]!.device);
  return parts.map(({ slot, nodes }) =>
    nodes.map((node, i) => ({ ...node, value: values[slot + i]! })),
  );

  async function read(device: Device): Promise<Float32Array> {
    const bytes = await device.scope(async () => {
      const slots = device.zeros([slotCount]);
      const use = (gradient: Tensor, flat: Tensor) =>
        encodeNodes(plan, flat, { gradient, slots, power: normType });
      await eachGradient(list, { isChanging: false, use });
      return slots.toBytes();
    });
    return new Float32Array(bytes.slice().buffer);
  }
}
