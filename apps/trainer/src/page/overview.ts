// The top of the page: what runs, how far it is, how it ended, and the last numbers at a glance.

import { formatBytes, formatCount, formatMs } from '../format.js';
import type { StepLine } from '../output/run-records.js';
import { agoText, spanText } from '../times.js';
import { dataElement, element } from './look/element.js';
import { workSeconds } from './plot/x-axis.js';
import type { RunModel } from './run/run-model.js';

/** The number of recent steps whose times predict how long the remaining ones will take. */
const RECENT_STEPS = 100;

export class Overview {
  readonly root: HTMLElement;
  readonly #run: RunModel;
  readonly #title = element('h1');
  readonly #badge = element('span', { class: 'badge' });
  readonly #progress = element('progress', { 'aria-label': 'Steps done', max: 1 });
  readonly #state = element('p', { class: 'progress-text' });
  readonly #reason = element('p', { class: 'reason', role: 'status' });
  readonly #tiles = element('dl', { class: 'tiles' });

  constructor(run: RunModel) {
    this.#run = run;
    this.root = element('div', { class: 'overview' }, [
      element('div', { class: 'title' }, [this.#title, this.#badge]),
      this.#progress,
      this.#state,
      this.#reason,
      this.#tiles,
    ]);
  }

  update(nowMs: number): void {
    const run = this.#run;
    this.#title.textContent = run.title || run.name;
    this.#badge.textContent = run.state;
    this.#badge.className = `badge ${run.state}`;
    const step = run.last?.step ?? 0;
    this.#progress.max = Math.max(1, run.plannedSteps);
    this.#progress.value = step;
    setText(this.#state, this.#progressText(nowMs));
    const isBad = run.end !== undefined && run.end.end !== 'done';
    setText(this.#reason, isBad ? (run.end!.reason ?? '') : '');
    this.#reason.hidden = !isBad;
    this.#tiles.replaceChildren(...this.#tileList());
  }

  #progressText(nowMs: number): string {
    const run = this.#run;
    const { last, plannedSteps, startedMs, end, lines, state, lastMs, sign } = run;
    if (state === 'killed') {
      const ago = lastMs === undefined ? [] : [`last record ${agoText(nowMs - lastMs)}`];
      const why = [sign ?? 'killed or still running elsewhere', ...ago].join(': ');
      return [...placeTexts(run), why].join(' \u00b7 ');
    }
    const untilMs = end?.atMs ?? nowMs;
    const passed = startedMs === undefined ? [] : [`${spanText(untilMs - startedMs)} passed`];
    if (last === undefined) {
      return ['no step yet', ...passed].join(' \u00b7 ');
    }
    const recent = lines.slice(-RECENT_STEPS);
    const first = recent[0]!;
    const each =
      recent.length > 1 ? (last.atMs - first.atMs) / (last.step - first.step) : last.stepMs;
    const isOver = end !== undefined || last.step >= plannedSteps;
    const left = isOver ? [] : [`${spanText((plannedSteps - last.step) * each)} left`];
    return [...placeTexts(run), ...passed, ...left].join(' \u00b7 ');
  }

  #tileList(): HTMLElement[] {
    const { last, lines } = this.#run;
    if (last === undefined) {
      return [];
    }
    const figures = lines.findLast((line) => line.figures != null)?.figures ?? {};
    const valid = lines.findLast(({ validLoss }) => validLoss != null);
    const exposed =
      last.exposedMs == null || !last.collectiveMs ? undefined : last.exposedMs / last.stepMs;
    return [
      lossTile(this.#run),
      tile('Validation', valid?.validLoss, valid?.validLoss?.toFixed(4), noteOf(valid, last)),
      ...Object.entries(figures).map(([name, value]) => tile(name, value, value.toFixed(4))),
      tile('Norm', last.gradNorm, last.gradNorm?.toFixed(3)),
      tile('Learning rate', last.lr, last.lr === 0 ? '0' : last.lr.toExponential(2)),
      tile('Tokens/s', last.tokensPerSecond, formatCount(last.tokensPerSecond)),
      tile('Step', last.stepMs, formatMs(last.stepMs)),
      ...this.#workTiles(last),
      tile('Peak', last.peakBytes, formatBytes(last.peakBytes ?? 0)),
      tile('Sent a step', last.wireBytes || undefined, formatBytes(last.wireBytes ?? 0)),
      tile('Exposed', exposed, percent(exposed ?? 0)),
    ].flatMap((tile) => tile ?? []);
  }

  /** What the run has worked through, how fast, and what it spent beside its steps. */
  #workTiles({ tokens, epoch, tokensPerSecond }: StepLine): (HTMLElement | undefined)[] {
    const { compute, lines, beginnings } = this.#run;
    const flops = compute && compute.flopsPerToken * tokensPerSecond;
    const share = flops && compute?.peakFlops ? flops / compute.peakFlops : undefined;
    const workMs = 1000 * (workSeconds(lines, beginnings).at(-1) ?? 0);
    const spent = (name: string, key: 'evalMs' | 'saveWaitMs') => {
      const ms = lines.reduce((sum, line) => sum + (line[key] ?? 0), 0);
      const share = workMs > 0 ? `${percent(ms / workMs)} of the time` : undefined;
      return tile(name, ms || undefined, ms < 60_000 ? formatMs(ms) : spanText(ms), share);
    };
    return [
      tile('Tokens seen', tokens, formatCount(tokens ?? 0)),
      tile('Epoch', epoch, epoch?.toFixed(2)),
      tile('FLOP/s', flops, formatFlops(flops ?? 0)),
      tile('Of the peak', share, percent(share ?? 0)),
      spent('In evaluation', 'evalMs'),
      spent('Waited for saves', 'saveWaitMs'),
    ];
  }
}

function placeTexts({ last, plannedSteps, thinnedFrom, lines }: RunModel): string[] {
  const thinned =
    thinnedFrom === undefined
      ? []
      : [`thinned from ${countText(thinnedFrom)} steps: ${countText(lines.length)} drawn`];
  return last === undefined
    ? ['no step yet']
    : [`step ${last.step} of ${plannedSteps}`, ...thinned];
}

const countText = (count: number) => count.toLocaleString('en');

/** The last loss; where the run diverged, that it did, and the last loss before. */
function lossTile({ lines, divergedAt }: RunModel): HTMLElement | undefined {
  const line = lines.findLast(({ loss }) => loss !== null);
  if (divergedAt === undefined) {
    return tile('Loss', line?.loss, line?.loss?.toFixed(4));
  }
  const before = line === undefined ? [] : [note(`before: ${line.loss!.toFixed(4)}`)];
  const said = element('dd', { class: 'bad' }, [`diverged at step ${divergedAt}`]);
  return element('div', {}, [element('dt', {}, ['Loss']), said, ...before]);
}

function noteOf(line: StepLine | undefined, last: StepLine): string | undefined {
  return line === undefined || line === last ? undefined : `after step ${line.step}`;
}

function tile(
  name: string,
  value: number | null | undefined,
  text: string | undefined,
  about?: string,
): HTMLElement | undefined {
  return value === undefined || value === null || text === undefined
    ? undefined
    : element('div', {}, [
        element('dt', {}, [name]),
        element('dd', {}, [dataElement(value, text)]),
        ...(about === undefined ? [] : [note(about)]),
      ]);
}

function note(text: string): HTMLElement {
  return element('dd', { class: 'about' }, [text]);
}

function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

/** Operations a second as text, such as `12.3 T` or `1.5 P`. */
function formatFlops(flops: number): string {
  return flops >= 1e15
    ? `${(flops / 1e15).toFixed(1)} P`
    : flops >= 1e12
      ? `${(flops / 1e12).toFixed(1)} T`
      : formatCount(flops).replace(/([kMG])$/, ' $1');
}

/** Sets a text, but leaves an equal one alone, because a screen reader announces changes. */
function setText(target: HTMLElement, text: string): void {
  if (target.textContent !== text) {
    target.textContent = text;
  }
}
