// A card over the whole window. It is the same card, moved into a dialog and back, so that whatever
// is chosen in it stays, and a live run goes on in it.

import { element } from '../look/element.js';

export class FullSize {
  readonly #card: HTMLElement;
  readonly #button: HTMLButtonElement;
  #dialog: HTMLDialogElement | undefined;

  /** @param button is named anew by whether the card is open, and takes the focus */
  constructor(card: HTMLElement, button: HTMLButtonElement) {
    this.#card = card;
    this.#button = button;
    button.addEventListener('click', () => this.toggle());
    this.#name();
  }

  toggle(): void {
    if (this.#dialog === undefined) {
      this.#open();
    } else {
      this.close();
    }
  }

  close(): void {
    this.#dialog?.close();
  }

  #open(): void {
    const focused = document.activeElement;
    const place = element('div', { class: 'card' });
    place.style.height = `${this.#card.offsetHeight}px`;
    const labelledBy = this.#card.getAttribute('aria-labelledby') ?? undefined;
    const dialog = element('dialog', { class: 'full', 'aria-labelledby': labelledBy });
    this.#card.replaceWith(place);
    dialog.append(this.#card);
    document.body.append(dialog);
    dialog.addEventListener('click', ({ target }) => {
      if (target === dialog) {
        dialog.close();
      }
    });
    const back = focused instanceof HTMLElement && this.#card.contains(focused) ? focused : null;
    const isFromPlot = back !== null && back !== this.#button;
    dialog.addEventListener('close', () => {
      place.replaceWith(this.#card);
      dialog.remove();
      this.#dialog = undefined;
      this.#name();
      (isFromPlot ? back : this.#button).focus();
    });
    this.#dialog = dialog;
    dialog.showModal();
    this.#name();
    (isFromPlot ? back : this.#button).focus();
  }

  #name(): void {
    this.#button.textContent = this.#dialog === undefined ? 'Full size' : 'Close';
  }
}
