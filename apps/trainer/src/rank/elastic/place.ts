// Where a rank of an elastic job stands, as it tells the others when they form an epoch: by that
// they know who is behind, and that all train the same.

import type { EpochMember } from '@shardweave/collectives/elastic';
import type { GradScalerState } from '@shardweave/nn';
import type { Best, StepMetrics, StepResources } from '../events.js';
import type { Progress } from '../train-loop.js';

/** The place of a rank: what steps leave beside weights and optimizer state. */
export interface Place extends Progress {
  readonly best?: Best | undefined;
  /** The loss of the evaluation after this very step. */
  readonly validLoss?: number | undefined;
  /** The state of the loss scaler, with --precision fp16. */
  readonly scaler?: GradScalerState | undefined;
  /** What was told of the last step, or is to be told; undefined before the first one. */
  readonly last?: { readonly metrics: StepMetrics; readonly resources: StepResources } | undefined;
  /** Whether all that follows that step was done, such as an evaluation. */
  readonly isTold: boolean;
}

export interface Note {
  /** Whether the process that leads the job hears this rank. */
  readonly isAttached: boolean;
  /** What decides the bits of steps, as of proofOf; members of other ones train something else. */
  readonly proof: string;
  /** The step (from 0) of which the rank has all gradients, and no decision. */
  readonly undecided?: number | undefined;
  /** The milliseconds that the rank takes for a group of rows; undefined before its first step. */
  readonly groupMs?: number | undefined;
  readonly place: Place;
}

/** The most that a note may take, with room for what JSON makes of names. */
const MOST_BYTES = 1000;

/** The note as text. What is only shown is left out where there is too much of it. */
export function noteText(note: Note): string {
  const { place } = note;
  const { last } = place;
  if (last === undefined) {
    return JSON.stringify(note);
  }
  const { groups: _, ...metrics } = last.metrics;
  const { figures: __, batchFigures: ___, ...least } = metrics;
  const text = (shown: StepMetrics) =>
    JSON.stringify({ ...note, place: { ...place, last: { ...last, metrics: shown } } });
  const whole = text(metrics);
  return new TextEncoder().encode(whole).length > MOST_BYTES ? text(least) : whole;
}

/**
 * The ranks of an epoch in the order in which they are at work. The first one tells of steps and
 * saves, so it is one that the leading process hears; undefined where it hears none.
 * @param source the rank whose state is the newest, which is first where it can be
 */
export function ranksInOrder(
  members: readonly EpochMember[],
  source: number,
): readonly number[] | undefined {
  const isAttached = members.map((member) => noteOf(member).isAttached);
  const keyOf = (rank: number) => (isAttached[rank] ? 0 : 2) + (rank === source ? 0 : 1);
  return isAttached.includes(true)
    ? [...members.keys()].sort((a, b) => keyOf(a) - keyOf(b) || a - b)
    : undefined;
}

/** The note of a member. */
export function noteOf({ note }: Pick<EpochMember, 'note'>): Note {
  const { place, ...rest } = JSON.parse(note) as Note;
  const { last, validLoss } = place;
  // JSON has null for what is no number, as the loss is where no target counts.
  const metrics = last && { ...last.metrics, loss: last.metrics.loss ?? Number.NaN };
  return {
    ...rest,
    place: {
      ...place,
      validLoss: validLoss === null ? Number.NaN : validLoss,
      last: last && { ...last, metrics: metrics! },
    },
  };
}

/**
 * Whether a member has to copy the state of the job. Who has all gradients of the last step ends it
 * by itself, and so has everybody who was at work in it: see Note [decision] in training-step.ts.
 */
export function isBehind(member: EpochMember, step: number): boolean {
  return member.step < step && !(member.step === step - 1 && noteOf(member).undecided === step - 1);
}
