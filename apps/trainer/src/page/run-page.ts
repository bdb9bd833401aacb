// The page of one run, or of several that are drawn over each other: its views, and when they are
// drawn.

import { CHARTS } from './charts.js';
import { element, swatch } from './element.js';
import { MemoryView } from './memory-view.js';
import { NotesView } from './notes-view.js';
import { Overview } from './overview.js';
import { NUM_RUN_COLORS } from './palette.js';
import { PlotView, stepAxis } from './plot-view.js';
import { RanksView } from './ranks-view.js';
import type { RunModel } from './run-model.js';

/** The page is drawn at most this often, however fast steps are. */
const DRAW_EVERY_MS = 250;
const TICK_MS = 1000;

export class RunPage {
  readonly runs: readonly RunModel[];
  readonly #isLive: boolean;
  readonly #overviews: readonly Overview[];
  readonly #plots: readonly PlotView[];
  readonly #memory: MemoryView;
  readonly #ranks: RanksView;
  readonly #notes: NotesView;
  readonly #message = element('p', { class: 'message', role: 'status' });
  readonly #hiddenRuns = new Set<number>();
  readonly #stop = new AbortController();
  #smoothing = 1;
  #timer: number | undefined;
  #ticker: number | undefined;

  constructor(runs: readonly RunModel[], { isLive }: { readonly isLive: boolean }) {
    this.runs = runs;
    this.#isLive = isLive;
    this.#overviews = runs.map((run) => new Overview(run, runs.length > 1 ? `${run.name}: ` : ''));
    const settings = {
      runs,
      isShown: (run: number) => !this.#hiddenRuns.has(run),
      smoothing: () => this.#smoothing,
    };
    this.#plots = CHARTS.map((chart) => new PlotView(chart, settings));
    this.#memory = new MemoryView(runs);
    this.#ranks = new RanksView(runs, { isLive });
    this.#notes = new NotesView(runs);
    this.#message.hidden = true;
    const top = document.querySelector('#top')!;
    const heads = this.#overviews.map(({ root }) => root);
    const isSeveral = runs.length > 1;
    top.className = isSeveral ? 'several' : '';
    top.replaceChildren(
      ...(isSeveral ? [element('h1', { class: 'sr' }, ['Runs compared'])] : []),
      this.#message,
      ...heads,
    );
    document.querySelector('#main')!.replaceChildren(
      this.#controls(),
      element(
        'div',
        { class: 'grid' },
        this.#plots.map(({ root }) => root),
      ),
      this.#ranks.root,
      this.#memory.root,
      ...this.#notes.roots,
    );
    const { signal } = this.#stop;
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    scheme.addEventListener('change', () => this.draw(), { signal });
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

  /** Shows a message at the top; an empty text takes it away. */
  say(text: string): void {
    this.#message.textContent = text;
    this.#message.hidden = text === '';
  }

  dispose(): void {
    this.#stop.abort();
    window.clearTimeout(this.#timer);
    window.clearInterval(this.#ticker);
  }

  #update(options: { readonly isNew: boolean }): void {
    window.clearTimeout(this.#timer);
    this.#timer = undefined;
    const axis = stepAxis(this.runs);
    for (const plot of this.#plots) {
      plot.update(axis, options);
    }
    this.#memory.update();
    this.#notes.update();
    this.#tick();
  }

  /** Updates what changes with time alone. */
  #tick(): void {
    const nowMs = this.#isLive ? Date.now() : 0;
    for (const [i, overview] of this.#overviews.entries()) {
      overview.update(this.#isLive ? nowMs : (this.runs[i]!.last?.atMs ?? 0));
    }
    this.#ranks.update(nowMs);
    const [run] = this.runs;
    const title = this.runs.length > 1 ? 'runs compared' : run!.title || run!.name;
    const state = this.#isLive && run!.last ? `${run!.last.step}/${run!.plannedSteps} ` : '';
    document.title = `${state}${title} - shardweave`;
  }

  #controls(): HTMLElement {
    const select = element('select', {}, [
      ...[1, 5, 20, 100].map((steps) =>
        element('option', { value: steps }, [steps === 1 ? 'off' : `${steps} steps`]),
      ),
    ]);
    select.addEventListener('change', () => {
      this.#smoothing = Number(select.value);
      this.draw();
    });
    const shown =
      this.runs.length === 1
        ? []
        : [
            element('fieldset', {}, [
              element('legend', {}, ['Runs']),
              ...this.runs.map((run, index) => this.#runSwitch(run, index)),
            ]),
          ];
    return element('div', { class: 'controls' }, [
      ...shown,
      element('label', {}, ['Smoothing ', select]),
    ]);
  }

  #runSwitch(run: RunModel, index: number): HTMLElement {
    const box = element('input', { type: 'checkbox', checked: true });
    box.addEventListener('change', () => {
      if (box.checked) {
        this.#hiddenRuns.delete(index);
      } else {
        this.#hiddenRuns.add(index);
      }
      this.draw();
    });
    const mark = swatch(`var(--run-${index % NUM_RUN_COLORS})`);
    return element('label', {}, [box, mark, run.name]);
  }
}
