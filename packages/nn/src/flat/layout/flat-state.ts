// What an optimizer keeps of one flat on the device: state tensors of the flat's size, and how many
// steps each of its parameters has seen. The numbers may differ within a flat, because a step
// passes over parameters without a gradient.

import type { Tensor } from '@shardweave/tensor-core';
import type { FlatMember } from './flat-plan.js';

/** How far one parameter has come. */
export interface Progress {
  /** Steps taken. */
  readonly step: number;
  /**
   * Names of the state tensors that a step has used. All others are zeros, and a momentum that is
   * not among the names begins with the next gradient.
   */
  readonly names: ReadonlySet<string>;
}

/**
 * A run of elements whose parameters have seen equally many steps. Padding between them
 * belongs to the run too, so a flat whose parameters are all stepped together has one run. Plain
 * JSON.
 */
export interface StateRun {
  readonly start: number;
  readonly length: number;
  readonly step: number;
  readonly names: readonly string[];
}

/** What there is of a flat's state as f32 bytes, wherever it rests. */
export interface FlatStateBytes {
  /** In ascending order. Elements that no run covers were never stepped. */
  readonly runs: readonly StateRun[];
  /** Each has as many elements as the flat; one that is missing is zeros. */
  readonly tensors: ReadonlyMap<string, Uint8Array>;
}

const UNSTEPPED: Progress = { step: 0, names: new Set() };

/**
 * What an optimizer keeps of one flat parameter: state tensors of the flat's size on the device,
 * and the number of steps that each parameter in it has seen.
 */
export class FlatState {
  /** f32, of the flat's size; empty where the state rests elsewhere between steps. */
  readonly tensors = new Map<string, Tensor>();
  readonly #members: readonly FlatMember[];
  readonly #progress = new Map<Tensor, Progress>();

  constructor(members: readonly FlatMember[], runs: readonly StateRun[] = []) {
    this.#members = members;
    this.runs = runs;
  }

  progressOf(param: Tensor): Progress {
    return this.#progress.get(param) ?? UNSTEPPED;
  }

  /** Records that these parameters have been stepped. */
  advance(progress: Iterable<readonly [Tensor, Progress]>): void {
    for (const [param, each] of progress) {
      this.#progress.set(param, each);
    }
  }

  get runs(): readonly StateRun[] {
    return this.runsAfter(new Map());
  }

  set runs(runs: readonly StateRun[]) {
    this.#progress.clear();
    for (const { param, start, length } of this.#members) {
      const run = length === 0 ? undefined : runAt(runs, start);
      if (run !== undefined) {
        this.#progress.set(param, { step: run.step, names: new Set(run.names) });
      }
    }
  }

  /** What `runs` will be once these parameters have been stepped. */
  runsAfter(progress: ReadonlyMap<Tensor, Progress>): StateRun[] {
    const members = this.#members.map(({ param, start, length }) => {
      const { step, names } = progress.get(param) ?? this.progressOf(param);
      return { start, length, step, names };
    });
    return joinRuns(members);
  }

  dispose(): void {
    for (const tensor of this.tensors.values()) {
      tensor.dispose();
    }
  }
}

/**
 * Joins members of a flat, in ascending order, into runs. A member at step 0 was never stepped and
 * is in no run.
 */
export function joinRuns(
  members: readonly (Omit<StateRun, 'names'> & { readonly names: Iterable<string> })[],
): StateRun[] {
  const runs: StateRun[] = [];
  let isOpen = false;
  for (const { start, length, step, names } of members) {
    if (length === 0) {
      continue;
    }
    const last = runs.at(-1);
    const sorted = [...names].sort();
    if (step === 0) {
      isOpen = false;
    } else if (isOpen && last?.step === step && last.names.join() === sorted.join()) {
      runs[runs.length - 1] = { ...last, length: start + length - last.start };
    } else {
      runs.push({ start, length, step, names: sorted });
      isOpen = true;
    }
  }
  return runs;
}

/** The run that contains an element. */
export function runAt(runs: readonly StateRun[], element: number): StateRun | undefined {
  return runs.find(({ start, length }) => start <= element && element < start + length);
}
