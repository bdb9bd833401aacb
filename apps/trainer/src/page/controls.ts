// What holds for all plots: what they run over, and how much noise is taken away.

import { element } from './look/element.js';
import { ownSmoothing, SMOOTHINGS } from './plot/smoothing.js';
import { hasTokens, type XKind } from './plot/x-axis.js';
import type { RunModel } from './run/run-model.js';

const KINDS = { step: 'step', tokens: 'tokens', time: 'time at work' } as const;

export class Controls {
  readonly root: HTMLElement;
  readonly #runs: readonly RunModel[];
  readonly #onChange: () => void;
  readonly #slider = element('input', {
    type: 'range',
    min: 0,
    max: SMOOTHINGS.length - 1,
    'aria-label': 'Smoothing',
  });
  readonly #told = element('output', { class: 'told' });
  readonly #kinds: HTMLSelectElement;
  readonly #tokens: HTMLOptionElement;
  #chosen: number | undefined;

  constructor(runs: readonly RunModel[], onChange: () => void) {
    this.#runs = runs;
    this.#onChange = onChange;
    const options = Object.entries(KINDS).map(([value, name]) =>
      element('option', { value }, [name]),
    );
    this.#tokens = options[1]!;
    this.#kinds = element('select', {}, options);
    this.#kinds.addEventListener('change', onChange);
    this.#slider.addEventListener('input', () => this.#choose());
    this.root = element('div', { class: 'controls' }, [
      element('label', {}, ['Over ', this.#kinds]),
      element('label', {}, ['Smoothing ', this.#slider, this.#told]),
    ]);
    this.update();
  }

  get kind(): XKind {
    return this.#kinds.value as XKind;
  }

  /** The number of steps that a mean is taken over; 1: no mean. */
  get smoothing(): number {
    const most = Math.max(0, ...this.#runs.map(({ last }) => last?.step ?? 0));
    return this.#chosen ?? ownSmoothing(most);
  }

  update(): void {
    const { smoothing } = this;
    this.#slider.value = String(SMOOTHINGS.indexOf(smoothing));
    const text = smoothing === 1 ? 'off' : `${smoothing.toLocaleString('en')} steps`;
    this.#slider.setAttribute('aria-valuetext', text);
    this.#told.textContent = text;
    this.#tokens.disabled = !hasTokens(this.#runs);
  }

  #choose(): void {
    this.#chosen = SMOOTHINGS[Number(this.#slider.value)]!;
    this.update();
    this.#onChange();
  }
}
