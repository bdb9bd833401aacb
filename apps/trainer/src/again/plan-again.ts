// Which steps have to be computed again, from which state on, and with which configurations.

import { existsSync } from 'node:fs';
import { UsageError } from '../errors.js';
import type { FoundSave } from '../files/save-directory.js';
import { decidingDifferences } from '../saves/saved-run.js';
import { type RecordedRun, type RecordedStart, requireStart, startOf } from './recorded-run.js';

/** Steps [first, last] in which nothing changes that decides bits. */
export interface Stretch {
  readonly first: number;
  readonly last: number;
  readonly start: RecordedStart;
}

export interface AgainPlan {
  /** The state that the first step goes on from: a save, or undefined for the first weights. */
  readonly from: { readonly step: number; readonly path: string | undefined };
  readonly stretches: readonly Stretch[];
}

/**
 * Plans to come to step `last`, from the nearest state before step `first`.
 * @throws {UsageError} where no such state is there any more, or the record does not say how it
 * went on from there
 */
export function planAgain(
  run: RecordedRun,
  { first, last }: { readonly first: number; readonly last: number },
): AgainPlan {
  requireStart(run, first);
  const from = nearestState(run, first);
  const stretches: Stretch[] = [];
  for (let at = from.step + 1; at <= last; ) {
    const start = startOf(run, at)!;
    const next = run.starts.find(({ step }) => step >= at)?.step ?? last;
    const end = Math.min(next, last);
    const before = stretches.at(-1);
    if (before !== undefined && !isOther(before.start, start)) {
      stretches[stretches.length - 1] = { ...before, last: end };
    } else {
      stretches.push({ first: at, last: end, start });
    }
    at = end + 1;
  }
  return { from, stretches };
}

function nearestState({ directory, saves, starts }: RecordedRun, first: number): AgainPlan['from'] {
  const known: AgainPlan['from'][] = saves
    .filter((save): save is FoundSave => 'record' in save)
    .map(({ step, path }) => ({ step, path }));
  for (const { step, from: path, config } of starts) {
    const beginning = path ?? config.firstSave; // that of a model's own weights has none
    if (beginning === undefined || existsSync(beginning)) {
      known.push({ step, path });
    }
  }
  const [nearest] = known.filter(({ step }) => step < first).sort((a, b) => b.step - a.step);
  if (nearest === undefined) {
    const missing = starts.flatMap(({ from, config }) => from ?? config.firstSave ?? []);
    const named = missing.length === 0 ? '' : ` It began with ${missing.join(' and ')}.`;
    throw new UsageError(
      `${directory}: expected a state before step ${first}, got none: no save is that old, and what the run began with is not there.${named} Put it back, or ask for later steps.`,
    );
  }
  return nearest;
}

/** Whether the steps of two starts follow other rules, or round otherwise. */
function isOther(one: RecordedStart, other: RecordedStart): boolean {
  const classes = ({ numericClasses }: RecordedStart) => numericClasses.join();
  return (
    one.tokens !== other.tokens ||
    classes(one) !== classes(other) ||
    decidingDifferences(one.config, other.config).length > 0
  );
}
