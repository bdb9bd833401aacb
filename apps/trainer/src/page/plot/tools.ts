// The buttons of a plot: what its values' axis is like, its files, and its full size.

import { element } from '../look/element.js';
import { FullSize } from './full-size.js';

export interface ToolsOptions {
  /** Whether there is no logarithmic axis to choose. */
  readonly isStacked: boolean;
  /** Whether the axis is logarithmic from the start. */
  readonly isLog: boolean;
  /** Called where the axis is to be another one. */
  readonly onChange: () => void;
  readonly onTable: () => void;
  readonly onPicture: () => void;
}

export class PlotTools {
  readonly root: HTMLElement;
  readonly #log: HTMLButtonElement;
  readonly #whole: HTMLButtonElement;
  readonly #full = element('button', { type: 'button' });
  #fullSize: FullSize | undefined;

  constructor({ isStacked, isLog, onChange, onTable, onPicture }: ToolsOptions) {
    this.#log = toggleButton('Log', { isPressed: isLog && !isStacked, onChange });
    this.#log.title = 'Logarithmic axis';
    this.#log.hidden = isStacked;
    this.#whole = toggleButton('All values', { isPressed: false, onChange });
    this.#whole.title = 'A range with all values in it, spikes too';
    this.root = element('div', { class: 'tools' }, [
      this.#log,
      this.#whole,
      plainButton('CSV', onTable),
      plainButton('PNG', onPicture),
      this.#full,
    ]);
  }

  /** Whether the axis is logarithmic. */
  get isLog(): boolean {
    return isOn(this.#log);
  }

  /** Whether the range has spikes in it, too. */
  get isWhole(): boolean {
    return isOn(this.#whole);
  }

  /** Lets the button for the full size open this card. */
  open(card: HTMLElement): void {
    this.#fullSize = new FullSize(card, this.#full);
  }

  /** Answers the key of a button; false where it is none's. */
  answer(key: string): boolean {
    const button = { l: this.#log, a: this.#whole, f: this.#full }[key.toLowerCase()];
    if (button === this.#full) {
      this.#fullSize?.toggle();
    } else if (button?.hidden === false) {
      button.click();
    }
    return button !== undefined;
  }

  /** Leaves the full size. */
  close(): void {
    this.#fullSize?.close();
  }
}

function plainButton(text: string, onClick: () => void): HTMLButtonElement {
  const button = element('button', { type: 'button' }, [text]);
  button.addEventListener('click', onClick);
  return button;
}

function toggleButton(
  text: string,
  { isPressed, onChange }: { readonly isPressed: boolean; readonly onChange: () => void },
): HTMLButtonElement {
  const button = plainButton(text, () => {
    button.setAttribute('aria-pressed', String(!isOn(button)));
    onChange();
  });
  button.setAttribute('aria-pressed', String(isPressed));
  return button;
}

function isOn(button: HTMLButtonElement): boolean {
  return button.getAttribute('aria-pressed') === 'true';
}
