// The base of the errors that packages throw on purpose.

/**
 * The base class of each package's errors. `code` is stable and is what callers branch on, and
 * `name` is that of the class.
 */
export abstract class CodedError extends Error {
  abstract readonly code: string;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}
