// The page of one run, or of several that are drawn over each other: its views, and when they are
// drawn.

import { CompareView } from './compare-view.js';
import { Controls } from './controls.js';
import { element } from './look/element.js';
import { MemoryView } from './memory-view.js';
import { NotesView } from './notes-view.js';
import { Overview } from './overview.js';
import { CHARTS } from './plot/charts.js';
import { PlotView, stepAxis } from './plot-view.js';
import { RanksView } from './ranks-view.js';
import type { RunModel } from './run/run-model.js';
import { Sparklines } from './sparklines.js';

/** The page is drawn at most this often, however fast steps are. */
const DRAW_EVERY_MS = 250;
const TICK_MS = 1000;
/** The least width of a plot's card with the gap beside it, as page.css has it. */
const PLOT_REM = 25.9;

export interface RunPageOptions {
  /** Whether records may still come. */
  readonly isLive: boolean;
  /** Whether several runs are compared in a table at the top. Default: true. */
  readonly hasTable?: boolean;
}

export class RunPage {
  readonly runs: readonly RunModel[];
  readonly #isLive: boolean;
  readonly #overview: Overview | undefined;
  readonly #compare: CompareView | undefined;
  readonly #sparks: Sparklines;
  readonly #controls: Controls;
  readonly #plots: readonly PlotView[];
  readonly #plotRow = element('div', { class: 'row plots' });
  readonly #memory: MemoryView;
  readonly #ranks: RanksView;
  readonly #notes: NotesView;
  readonly #message = element('p', { class: 'message', role: 'status' });
  readonly #hiddenRuns = new Set<number>();
  readonly #stop = new AbortController();
  #timer: number | undefined;
  #ticker: number | undefined;

  constructor(runs: readonly RunModel[], { isLive, hasTable = true }: RunPageOptions) {
    this.runs = runs;
    this.#isLive = isLive;
    const isSeveral = runs.length > 1;
    this.#overview = isSeveral ? undefined : new Overview(runs[0]!);
    this.#compare =
      isSeveral && hasTable ? new CompareView(runs, (run, on) => this.show(run, on)) : undefined;
    this.#sparks = new Sparklines(runs);
    this.#controls = new Controls(runs, () => this.draw());
    const settings = {
      runs,
      isShown: (run: number) => !this.#hiddenRuns.has(run),
      smoothing: () => this.#controls.smoothing,
    };
    this.#plots = CHARTS.map((chart) => new PlotView(chart, settings));
    this.#memory = new MemoryView(runs);
    this.#ranks = new RanksView(runs, { isLive });
    this.#notes = new NotesView(runs);
    this.#message.hidden = true;
    this.#place();
    const { signal } = this.#stop;
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    scheme.addEventListener('change', () => this.draw(), { signal });
    window.addEventListener('resize', () => this.#layOut(), { signal });
    if (isLive) {
      this.#ticker = window.setInterval(() => this.#tick(), TICK_MS);
    }
  }

  /** Draws everything, with the colors and series that hold from now on. */
  draw(): void {
    this.#update({ isNew: true });
  }

  /** Draws what has changed, together with what changes in the next moments. */
  drawSoon(): void {
    this.#timer ??= window.setTimeout(() => this.#update({ isNew: false }), DRAW_EVERY_MS);
  }

  /** Draws a run, or leaves it out. */
  show(run: number, isShown: boolean): void {
    if (isShown) {
      this.#hiddenRuns.delete(run);
    } else {
      this.#hiddenRuns.add(run);
    }
    this.draw();
  }

  /** Shows a message at the top; an empty text takes it away. A note is no complaint. */
  say(text: string, { isNote = false }: { readonly isNote?: boolean } = {}): void {
    this.#message.className = isNote ? 'message told' : 'message';
    this.#message.textContent = text;
    this.#message.hidden = text === '';
  }

  /** Says of a run that has ended where its page stays. */
  sayEnd(): void {
    const report = this.runs[0]?.end?.report;
    const text =
      report === undefined
        ? 'The run has ended, and its command with it. Without --out it has left no page: what is shown here is lost by a reload.'
        : `The run has ended. ${report} is this same page, with the data inside: it opens without any command.`;
    this.say(text, { isNote: true });
  }

  dispose(): void {
    this.#stop.abort();
    window.clearTimeout(this.#timer);
    window.clearInterval(this.#ticker);
    for (const plot of this.#plots) {
      plot.dispose();
    }
  }

  #place(): void {
    const heading =
      this.#overview?.root ?? element('h1', {}, [`${this.runs.length} runs compared`]);
    const table = this.#compare === undefined ? [] : [this.#compare.root];
    document
      .querySelector('#top')!
      .replaceChildren(this.#sparks.root, this.#message, heading, ...table);
    this.#plotRow.append(...this.#plots.map(({ root }) => root));
    document
      .querySelector('#main')!
      .replaceChildren(
        this.#controls.root,
        this.#plotRow,
        element('div', { class: 'row' }, [this.#ranks.root, this.#memory.root]),
        element('div', { class: 'notes' }, this.#notes.roots),
      );
  }

  #update(options: { readonly isNew: boolean }): void {
    window.clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#controls.update();
    const axis = stepAxis(this.runs, this.#controls.kind);
    for (const plot of this.#plots) {
      plot.update(axis, options);
    }
    this.#layOut();
    this.#sparks.update((run) => !this.#hiddenRuns.has(run));
    this.#memory.update();
    this.#notes.update();
    this.#compare?.update();
    this.#tick();
  }

  /** Shares plots among as few rows as they need: of seven where six fit, four and three. */
  #layOut(): void {
    const count = this.#plots.filter(({ root }) => !root.hidden).length;
    const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
    const most = Math.max(1, Math.floor(this.#plotRow.clientWidth / (PLOT_REM * rem)));
    const columns = Math.ceil(count / Math.max(1, Math.ceil(count / most)));
    this.#plotRow.style.setProperty('--columns', String(Math.max(1, columns)));
  }

  /** Updates what changes with time alone. */
  #tick(): void {
    const nowMs = Date.now();
    this.#overview?.update(nowMs);
    this.#ranks.update(nowMs);
    const [run] = this.runs;
    const names = this.#isLive ? [run!.title || run!.name] : [run!.name, run!.title];
    const named = names.filter((text) => text !== '').join(', ');
    const title = this.runs.length > 1 ? 'runs compared' : named;
    const state = this.#isLive && run!.last ? `${run!.last.step}/${run!.plannedSteps} ` : '';
    document.title = `${state}${title} - shardweave`;
  }
}
