// The hashes of engines beside those that are expected: by numeric class, then by program.

/** The digits of a hash that are shown. */
const SHOWN = 12;

export class HashTable {
  /** What is expected, or was found first where nothing is. */
  hashes;
  /** What differs, as sentences. */
  faults = [];
  /** The names of the columns. */
  programs = [];

  constructor(expected) {
    this.hashes = structuredClone(expected);
  }

  /** Takes an engine's outcomes, and returns a line for each of its numeric classes. */
  add(engine, outcomes) {
    this.programs = [...new Set([...this.programs, ...outcomes.map(({ program }) => program)])];
    const classes = [...new Set(outcomes.map(({ numericClass }) => numericClass))];
    return classes.map((numericClass) => {
      const own = outcomes.filter((outcome) => outcome.numericClass === numericClass);
      const cells = this.programs.map((program) => {
        const found = own.filter((outcome) => outcome.program === program);
        for (const outcome of found) {
          this.#judge(engine, outcome);
        }
        return [...new Set(found.map(({ hash }) => hash.slice(0, SHOWN)))].join(' or ');
      });
      const threads = [...new Set(own.map((outcome) => outcome.threads))].join(' ');
      const [kind = numericClass] = /fused|plain/.exec(numericClass) ?? [];
      return [engine.padEnd(24), `threads ${threads}`.padEnd(17), kind, ...cells].join('  ');
    });
  }

  #judge(engine, { numericClass, program, threads, hash }) {
    const expected = this.hashes[numericClass]?.[program] ?? hash;
    this.hashes[numericClass] = { ...this.hashes[numericClass], [program]: expected };
    if (hash !== expected) {
      this.faults.push(
        `${engine} with ${threads} threads, ${numericClass}, ${program}: expected ${expected}, got ${hash}.`,
      );
    }
  }
}
