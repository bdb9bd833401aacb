// The error of a conformance case whose backend gives another result than the reference.

/**
 * The error of a conformance case. Its message names the case, the operand and the first element
 * that differs, with what was expected and got, and says how many elements differ.
 */
export class ConformanceError extends Error {
  readonly code = 'CONFORMANCE';
  readonly caseName: string;

  constructor(caseName: string, message: string) {
    super(`${caseName}: ${message}`);
    this.name = 'ConformanceError';
    this.caseName = caseName;
  }
}
