// Shows what the model wrote, what was saved, what to watch out for, and what the run was started
// with.

import { formatBytes, formatMs } from '../format.js';
import { type Child, dataElement, element } from './element.js';
import type { RunModel } from './run-model.js';
import { scrollable, tableRow } from './table-view.js';

export class NotesView {
  readonly roots: readonly HTMLElement[];
  readonly #runs: readonly RunModel[];
  readonly #samples = card('samples', 'Samples');
  readonly #saves = card('saves', 'Saves');
  readonly #warnings = card('warnings', 'Warnings');
  readonly #settings = card('settings', 'Settings');
  #version = '';

  constructor(runs: readonly RunModel[]) {
    this.#runs = runs;
    this.roots = [this.#warnings, this.#samples, this.#saves, this.#settings].map(
      ({ root }) => root,
    );
  }

  update(): void {
    const version = this.#runs
      .map(({ samples, saves, warnings, header }) =>
        [samples, saves, warnings, header].map(({ length }) => length).join(),
      )
      .join(';');
    if (version === this.#version) {
      return;
    }
    this.#version = version;
    this.#samples.show(
      this.#each(({ samples }) =>
        samples
          .map(({ step, prompt, text }) =>
            element('figure', { class: 'sample' }, [
              element('figcaption', {}, [`after step ${step}`]),
              element('blockquote', {}, [element('span', { class: 'prompt' }, [prompt]), text]),
            ]),
          )
          .reverse(),
      ),
    );
    this.#saves.show(this.#each((run) => (run.saves.length === 0 ? [] : [savesTable(run)])));
    this.#warnings.show(
      this.#each(({ warnings }) =>
        warnings.length === 0
          ? []
          : [
              element(
                'ul',
                {},
                warnings.map((text) => element('li', {}, [text])),
              ),
            ],
      ),
    );
    this.#settings.show(
      this.#each(({ header }) =>
        header.length === 0
          ? []
          : [
              element(
                'dl',
                { class: 'settings' },
                header.map(([name, value]) =>
                  element('div', {}, [element('dt', {}, [name]), element('dd', {}, [value])]),
                ),
              ),
            ],
      ),
    );
  }

  /** The contents of all runs, each with its name where there are several. */
  #each(contentOf: (run: RunModel) => HTMLElement[]): Child[] {
    return this.#runs.flatMap((run) => {
      const content = contentOf(run);
      const isNamed = this.#runs.length > 1 && content.length > 0;
      return isNamed ? [element('h3', {}, [run.name]), ...content] : content;
    });
  }
}

function savesTable({ name, saves }: RunModel): HTMLElement {
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
  const table = element('table', {}, [
    element('caption', { class: 'sr' }, ['Saves']),
    element('thead', {}, [
      element(
        'tr',
        {},
        ['Step', 'Directory', 'Size', 'Time', 'A step waited'].map((name) =>
          element('th', { scope: 'col' }, [name]),
        ),
      ),
    ]),
    element('tbody', {}, rows),
  ]);
  return scrollable(table, `Saves of ${name}`);
}

interface Card {
  readonly root: HTMLElement;
  /** Sets the content; the card is hidden where it is empty. */
  show(content: readonly Child[]): void;
}

function card(id: string, title: string): Card {
  const body = element('div');
  const root = element('section', { class: 'card wide', id, 'aria-labelledby': `title-${id}` }, [
    element('header', {}, [element('h2', { id: `title-${id}` }, [title])]),
    body,
  ]);
  root.hidden = true;
  return {
    root,
    show: (content) => {
      root.hidden = content.length === 0;
      body.replaceChildren(...content);
    },
  };
}
