// The error of a start that can't work: what the environment or the options say is missing, wrong or
// contradictory. Nothing has been sent when it is thrown.

export class LaunchError extends Error {
  readonly code = 'LAUNCH';
  /** The environment variable or option that is to blame. */
  readonly variable: string;
  /** What it had; undefined where it was not set. */
  readonly value: string | undefined;

  /** `problem` ends without a full stop, `remedy` is a sentence that says what to set. */
  constructor(
    variable: string,
    value: string | undefined,
    text: { readonly problem: string; readonly remedy: string },
  ) {
    const had = value === undefined ? 'it is not set' : `got "${value}"`;
    super(`${variable}: ${text.problem}, ${had}. ${text.remedy}`);
    this.name = new.target.name;
    this.variable = variable;
    this.value = value;
  }
}
