// Shows what the model wrote, what was saved, what to watch out for, and what the run was started
// with.

import { formatBytes, formatMs } from '../format.js';
import { type Child, card, dataElement, element } from './look/element.js';
import type { RunModel } from './run/run-model.js';
import { tableOf, tableRow } from './table-view.js';

/** With more runs than this their notes are closed. */
const MOST_OPEN = 2;

export class NotesView {
  readonly roots: readonly HTMLElement[];
  readonly #runs: readonly RunModel[];
  readonly #samples = emptyCard('samples', 'Samples');
  readonly #classes = emptyCard('classes', 'Classes');
  readonly #saves = emptyCard('saves', 'Saves');
  readonly #warnings = emptyCard('warnings', 'Warnings');
  readonly #changes = emptyCard('changes', 'Changes of ranks');
  readonly #settings = emptyCard('settings', 'Settings');
  #version = '';

  constructor(runs: readonly RunModel[]) {
    this.#runs = runs;
    const cards = [this.#warnings, this.#changes, this.#samples, this.#classes, this.#saves];
    this.roots = [...cards, this.#settings].map(({ root }) => root);
  }

  update(): void {
    const version = this.#runs.map(({ notesVersion }) => notesVersion).join();
    if (version === this.#version) {
      return;
    }
    this.#version = version;
    this.#show(this.#samples, samplesIn);
    this.#show(this.#classes, classesIn);
    this.#show(this.#saves, savesIn);
    this.#show(this.#warnings, warningsIn);
    this.#show(this.#changes, changesIn);
    this.#show(this.#settings, settingsIn);
  }

  /** Shows what a card has of each run, with the run's name where there are several. */
  #show({ root, body }: Card, contentOf: (run: RunModel) => readonly HTMLElement[]): void {
    const all = this.#runs.flatMap((run): readonly Child[] => {
      const content = contentOf(run);
      const isNamed = this.#runs.length > 1 && content.length > 0;
      return isNamed ? [this.#partOf(run, content)] : content;
    });
    root.hidden = all.length === 0;
    body.replaceChildren(...all);
  }

  /** What a card has of a run, under its name, which opens it where many would be long. */
  #partOf({ name }: RunModel, content: readonly HTMLElement[]): HTMLElement {
    const summary = element('summary', {}, [name]);
    return element('details', { open: this.#runs.length <= MOST_OPEN }, [summary, ...content]);
  }
}

function samplesIn({ name, samples }: RunModel): HTMLElement[] {
  const figures = samples.map(({ step, prompt, text }) =>
    element('figure', { class: 'sample' }, [
      element('figcaption', {}, [`after step ${step}`]),
      element('blockquote', {}, [element('span', { class: 'prompt' }, [prompt]), text]),
    ]),
  );
  const label = `Samples of ${name}, the newest first`;
  return figures.length === 0
    ? []
    : [
        element(
          'div',
          { class: 'scroll samples', tabindex: 0, role: 'region', 'aria-label': label },
          figures.reverse(),
        ),
      ];
}

/** The figures of each class, and how many of its texts were given which label. */
function classesIn({ name, classes: found }: RunModel): HTMLElement[] {
  if (found === undefined) {
    return [];
  }
  const { step, classes = [], confusion } = found;
  const figure = (value: number) => dataElement(value, value.toFixed(4));
  const rows = classes.map(({ label, precision, recall, f1, support }) =>
    tableRow([label, ...[precision, recall, f1].map(figure), dataElement(support, `${support}`)]),
  );
  const columns = ['Label', 'Precision', 'Recall', 'F1', 'Texts'];
  const body = element('tbody', {}, rows);
  const table = tableOf('Classes', columns, body, `Classes of ${name} after step ${step}`);
  if (confusion === undefined) {
    return [table];
  }
  const labels = classes.map(({ label }) => label);
  const counts = confusion.map((row, i) =>
    tableRow([labels[i] ?? '', ...row.map((count) => dataElement(count, String(count)))]),
  );
  const title = `Labels of ${name} (rows) and the ones given`;
  return [
    table,
    element('p', { class: 'note' }, [`After step ${step}. Below: labels by row, given by column.`]),
    tableOf('Confusion', ['Label', ...labels], element('tbody', {}, counts), title),
  ];
}

function warningsIn({ warnings }: RunModel): HTMLElement[] {
  const items = warnings.map((text) => element('li', {}, [text]));
  return items.length === 0 ? [] : [element('ul', {}, items)];
}

function settingsIn({ header }: RunModel): HTMLElement[] {
  const rows = header.map(([name, value]) =>
    element('div', {}, [element('dt', {}, [name]), element('dd', {}, [value])]),
  );
  return rows.length === 0 ? [] : [element('dl', { class: 'settings' }, rows)];
}

function changesIn({ name, changes }: RunModel): HTMLElement[] {
  const rows = changes
    .toReversed()
    .map(({ step, ranks, came, left, lost, reasons }) =>
      tableRow([
        dataElement(step, String(step)),
        ...[ranks, came, left, lost].map((count) => dataElement(count, String(count))),
        reasons.join('; '),
      ]),
    );
  const columns = ['Step', 'Ranks', 'Came', 'Left', 'Lost', 'Why'];
  const body = element('tbody', {}, rows);
  return rows.length === 0
    ? []
    : [tableOf('Changes of ranks', columns, body, `Changes of ranks of ${name}`)];
}

function savesIn({ name, saves }: RunModel): HTMLElement[] {
  const rows = [...saves]
    .reverse()
    .map(({ step, directory, bytes, ms, waitMs }) =>
      tableRow([
        dataElement(step, String(step)),
        directory,
        dataElement(bytes, formatBytes(bytes)),
        dataElement(ms, formatMs(ms)),
        dataElement(waitMs, formatMs(waitMs)),
      ]),
    );
  const columns = ['Step', 'Directory', 'Size', 'Time', 'A step waited'];
  const table = tableOf('Saves', columns, element('tbody', {}, rows), `Saves of ${name}`);
  return rows.length === 0 ? [] : [table];
}

/** A card that is hidden as long as its body is empty. */
interface Card {
  readonly root: HTMLElement;
  readonly body: HTMLElement;
}

function emptyCard(id: string, title: string): Card {
  const body = element('div');
  const root = card(id, title, { below: [body] });
  root.hidden = true;
  return { root, body };
}
