// What the plots run over: steps, tokens, or the time at work.

import { formatCount } from '../../format.js';
import type { StepLine } from '../../output/run-records.js';
import { spanText } from '../../times.js';
import type { RunModel } from '../run/run-model.js';

export type XKind = 'step' | 'tokens' | 'time';

/** The places on the axis, in order, with each run's line there. */
export interface StepAxis {
  readonly kind: XKind;
  /** Steps, tokens, or seconds. */
  readonly xs: readonly number[];
  /** The lines by run, then in the order of `xs`; undefined where a run has no step there. */
  readonly lines: readonly (readonly (StepLine | undefined)[])[];
}

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
/** The distances of ticks over time, in seconds. */
const TIME_STEPS = [
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * MINUTE),
  ...[1, 2, 3, 6, 12].map((hours) => hours * HOUR),
  ...[1, 2, 5, 10, 20, 50, 100].map((days) => days * DAY),
];
const byOrder = (a: number, b: number) => a - b;
const COUNT_STEPS = Array.from({ length: 16 }, (_, i) => 10 ** i)
  .flatMap((power) => [1, 2, 5].map((digit) => digit * power))
  .sort(byOrder);

/** The places of all runs, each once and in order. */
export function stepAxis(runs: readonly RunModel[], kind: XKind = 'step'): StepAxis {
  const places = runs.map((run) => placesOf(run, kind));
  if (runs.length === 1) {
    const xs = places[0]!;
    const lines = runs[0]!.lines.filter((_, i) => xs[i] !== undefined);
    return { kind, xs: xs.filter((x) => x !== undefined), lines: [lines] };
  }
  const all = new Set(places.flatMap((xs) => xs.filter((x) => x !== undefined)));
  const xs = [...all].sort(byOrder);
  const lines = runs.map(({ lines: own }, run) => {
    const byPlace = new Map(own.map((line, i) => [places[run]![i], line]));
    return xs.map((x) => byPlace.get(x));
  });
  return { kind, xs, lines };
}

/** Where each line of a run lies; undefined where nothing tells, as in records without tokens. */
function placesOf(run: RunModel, kind: XKind): readonly (number | undefined)[] {
  if (kind === 'time') {
    return workSeconds(run.lines, run.beginnings);
  }
  return run.lines.map(({ step, tokens }) => (kind === 'step' ? step : (tokens ?? undefined)));
}

/**
 * The seconds of work until each line. The time between a command's last line and the beginning of
 * the one that goes on does not count.
 */
export function workSeconds(
  lines: readonly Pick<StepLine, 'atMs' | 'stepMs'>[],
  beginnings: readonly number[],
): number[] {
  const [first] = lines;
  const start = beginnings[0] ?? (first === undefined ? 0 : first.atMs - first.stepMs);
  let next = 1;
  let pausesMs = 0;
  let before = start;
  let most = 0;
  return lines.map(({ atMs }) => {
    while (next < beginnings.length && beginnings[next]! < atMs) {
      pausesMs += Math.max(0, beginnings[next]! - before);
      before = Math.max(before, beginnings[next]!);
      next++;
    }
    before = atMs;
    // A clock that was set back must not turn the axis around.
    most = Math.max(most, (atMs - start - pausesMs) / 1000);
    return most;
  });
}

export function hasTokens(runs: readonly RunModel[]): boolean {
  return runs.some(({ lines }) => lines.some(({ tokens }) => tokens != null));
}

/** A place as text, such as `step 120`, `3.2M tokens` or `2 h 5 min`. */
export function placeText(kind: XKind, x: number): string {
  switch (kind) {
    case 'step':
      return `step ${x}`;
    case 'tokens':
      return `${formatCount(x)} tokens`;
    case 'time':
      return spanText(x * 1000);
  }
}

export function tickSteps(kind: XKind): readonly number[] {
  return kind === 'time' ? TIME_STEPS : COUNT_STEPS;
}

/** The ticks as text, all in one unit: 5k, 10k; 1:30 h, 2:00 h. */
export function tickTexts(kind: XKind, ticks: readonly number[]): string[] {
  const most = ticks.at(-1) ?? 0;
  const distance = ticks.length > 1 ? ticks[1]! - ticks[0]! : most;
  if (kind === 'time') {
    return ticks.map((seconds) => timeTick(seconds, { most, distance }));
  }
  const [suffix, size] = (
    [
      ['G', 1e9],
      ['M', 1e6],
      ['k', 1e3],
    ] as const
  ).find(([, unit]) => most >= 10 * unit || (unit > 1e3 && most >= unit)) ?? ['', 1];
  return ticks.map((tick) =>
    tick === 0 ? '0' : `${Number((tick / size).toPrecision(6))}${suffix}`,
  );
}

function timeTick(
  seconds: number,
  { most, distance }: { readonly most: number; readonly distance: number },
): string {
  if (distance >= DAY) {
    return `${seconds / DAY} d`;
  }
  const two = (value: number) => String(value).padStart(2, '0');
  if (most >= HOUR) {
    const hours = Math.floor(seconds / HOUR);
    return distance >= HOUR
      ? `${hours} h`
      : `${hours}:${two(Math.floor((seconds % HOUR) / MINUTE))} h`;
  }
  if (most >= MINUTE) {
    const minutes = Math.floor(seconds / MINUTE);
    return distance >= MINUTE
      ? `${minutes} min`
      : `${minutes}:${two(Math.round(seconds % MINUTE))}`;
  }
  return `${seconds} s`;
}
