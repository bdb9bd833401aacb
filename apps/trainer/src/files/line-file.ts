// A file that grows by whole lines while a run is at work. A disk without room costs no line as
// long as the process lives: what was not taken is written with the next line.

import { closeSync, fstatSync, ftruncateSync, openSync, writeSync } from 'node:fs';

export class LineFile {
  readonly #file: number;
  /** The length of the lines that are whole. */
  #length: number;
  readonly #waiting: string[] = [];

  /** @param path a new file, or one that ends in a whole line */
  constructor(path: string) {
    this.#file = openSync(path, 'a');
    this.#length = fstatSync(this.#file).size;
  }

  /**
   * Appends a line behind those that wait. Lines are written at once, so that a process that is
   * killed leaves them.
   * @throws what the system reports; the line waits then
   */
  add(line: string): void {
    this.#waiting.push(`${line}\n`);
    this.#flush();
  }

  /**
   * Tries a last time to write the lines that wait.
   * @returns how many of them are lost
   */
  close(): number {
    try {
      this.#flush();
    } catch {
      // Whoever added a line was told why.
    }
    closeSync(this.#file);
    return this.#waiting.length;
  }

  #flush(): void {
    while (this.#waiting.length > 0) {
      this.#write(Buffer.from(this.#waiting[0]!));
      this.#waiting.shift();
    }
  }

  /** Writes all of a line or nothing, because half of one would spoil the next one, too. */
  #write(line: Uint8Array): void {
    try {
      for (let done = 0; done < line.byteLength; ) {
        done += writeSync(this.#file, line, done);
      }
      this.#length += line.byteLength;
    } catch (error) {
      ftruncateSync(this.#file, this.#length);
      throw error;
    }
  }
}
