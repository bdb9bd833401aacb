// The error of a set-up step that could not be done. Its message names the step and what it needs.
export class SetupError extends Error {
  name = 'SetupError';

  constructor(step, message) {
    super(`${step}: ${message}`);
    this.step = step;
  }
}
