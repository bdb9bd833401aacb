// The factor that keeps small f16 gradients from vanishing, with the rule of PyTorch's GradScaler:
// halved at an overflow, which skips the step, and doubled after many steps without one.

const INITIAL_SCALE = 65536;
const GROWTH_INTERVAL = 2000;

export class LossScale {
  readonly #isDynamic: boolean;
  #value: number;
  #cleanSteps = 0;

  /** @param options.isDynamic false: always 1, and no step is skipped. */
  constructor(options: { readonly isDynamic: boolean }) {
    this.#isDynamic = options.isDynamic;
    this.#value = options.isDynamic ? INITIAL_SCALE : 1;
  }

  get value(): number {
    return this.#value;
  }

  /** Notes a step's gradients, as all ranks agree on them; whether the step is to be skipped. */
  update(step: { readonly isFinite: boolean }): boolean {
    if (!this.#isDynamic) return false;
    if (!step.isFinite) {
      this.#value /= 2;
      this.#cleanSteps = 0;
      return true;
    }
    this.#cleanSteps += 1;
    if (this.#cleanSteps === GROWTH_INTERVAL) {
      this.#value *= 2;
      this.#cleanSteps = 0;
    }
    return false;
  }
}
