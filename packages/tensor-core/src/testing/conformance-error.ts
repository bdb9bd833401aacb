// What a conformance case throws when a backend's result is not the reference's.

/** The message says case, operand, index, expected, got and how many elements differ. */
export class ConformanceError extends Error {
  readonly code = 'CONFORMANCE';
  readonly caseName: string;

  constructor(caseName: string, message: string) {
    super(`${caseName}: ${message}`);
    this.name = 'ConformanceError';
    this.caseName = caseName;
  }
}
