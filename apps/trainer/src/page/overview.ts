// The top of the page: what runs, how far it is, how it ended, and the last numbers at a glance.

import { formatBytes, formatCount, formatMs } from '../format.js';
import { dataElement, element } from './element.js';
import type { RunModel } from './run-model.js';
import { spanText } from './times.js';

/** The number of recent steps whose times predict how long the remaining ones will take. */
const RECENT_STEPS = 100;

export class Overview {
  readonly root: HTMLElement;
  readonly #run: RunModel;
  readonly #prefix: string;
  readonly #title = element('h1');
  readonly #badge = element('span', { class: 'badge' });
  readonly #progress = element('progress', { 'aria-label': 'Steps done', max: 1 });
  readonly #state = element('p', { class: 'progress-text' });
  readonly #reason = element('p', { class: 'reason', role: 'status' });
  readonly #tiles = element('dl', { class: 'tiles' });

  /** @param prefix put before the title, where there are several runs */
  constructor(run: RunModel, prefix = '') {
    this.#run = run;
    this.#prefix = prefix;
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
    this.#title.textContent = `${this.#prefix}${run.title || run.name}`;
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
    const { last, plannedSteps, startedMs, end, lines, thinnedFrom } = this.#run;
    const passed =
      startedMs === undefined ? [] : [`${spanText((end?.atMs ?? nowMs) - startedMs)} passed`];
    if (last === undefined) {
      return ['no step yet', ...passed].join(' \u00b7 ');
    }
    const recent = lines.slice(-RECENT_STEPS);
    const first = recent[0]!;
    const each = recent.length > 1 ? (last.atMs - first.atMs) / (recent.length - 1) : last.stepMs;
    const isOver = end !== undefined || last.step >= plannedSteps;
    const left = isOver ? [] : [`${spanText((plannedSteps - last.step) * each)} left`];
    const thinned =
      thinnedFrom === undefined
        ? []
        : [`thinned from ${countText(thinnedFrom)} steps: ${countText(lines.length)} drawn`];
    return [`step ${last.step} of ${plannedSteps}`, ...passed, ...left, ...thinned].join(
      ' \u00b7 ',
    );
  }

  #tileList(): HTMLElement[] {
    const { last, lines } = this.#run;
    if (last === undefined) {
      return [];
    }
    const figures = lines.findLast((line) => line.figures != null)?.figures ?? {};
    const validation = lines.findLast(({ validLoss }) => validLoss != null)?.validLoss;
    const loss = lines.findLast((line) => line.loss !== null)?.loss;
    const exposed =
      last.exposedMs == null || !last.collectiveMs ? undefined : last.exposedMs / last.stepMs;
    return [
      tile('Loss', loss, loss?.toFixed(4)),
      tile('Validation', validation, validation?.toFixed(4)),
      ...Object.entries(figures).map(([name, value]) => tile(name, value, value.toFixed(4))),
      tile('Norm', last.gradNorm, last.gradNorm?.toFixed(3)),
      tile('Learning rate', last.lr, last.lr.toExponential(2)),
      tile('Tokens/s', last.tokensPerSecond, formatCount(last.tokensPerSecond)),
      tile('Step', last.stepMs, formatMs(last.stepMs)),
      tile('Peak', last.peakBytes, formatBytes(last.peakBytes ?? 0)),
      tile('Sent a step', last.wireBytes, formatBytes(last.wireBytes ?? 0)),
      tile('Exposed', exposed, `${((exposed ?? 0) * 100).toFixed(1)} %`),
    ].flatMap((tile) => tile ?? []);
  }
}

const countText = (count: number) => count.toLocaleString('en');

function tile(
  name: string,
  value: number | null | undefined,
  text: string | undefined,
): HTMLElement | undefined {
  return value === undefined || value === null || text === undefined
    ? undefined
    : element('div', {}, [
        element('dt', {}, [name]),
        element('dd', {}, [dataElement(value, text)]),
      ]);
}

/** Sets a text, but leaves an equal one alone, because a screen reader announces changes. */
function setText(target: HTMLElement, text: string): void {
  if (target.textContent !== text) {
    target.textContent = text;
  }
}
