// Runs an example of a package's README, which imports the package by its name.
import { readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { vi } from 'vitest';

export interface ReadmeExampleOptions {
  /** The extension of the file that the example is run as. Default: js. */
  readonly extension?: 'js' | 'mjs' | 'ts';
  /** The index of the example among the README's `js` blocks. Default: the first. */
  readonly index?: number;
  /** Adds what a reader need not write, such as types where tests are typed. */
  readonly change?: (example: string) => string;
}

/** Runs an example and returns what it logs. `folder` is the package's, with a slash at its end. */
export async function runReadmeExample(
  folder: string,
  { extension = 'js', index = 0, change = (example) => example }: ReadmeExampleOptions = {},
): Promise<unknown[]> {
  const readme = readFileSync(`${folder}README.md`, 'utf8');
  const example = [...readme.matchAll(/```js\n(.*?)```/gs)][index]![1]!;
  const place = await mkdtemp(`${folder}test/.readme-`);
  const logged: unknown[] = [];
  const log = vi.spyOn(console, 'log').mockImplementation((value) => void logged.push(value));
  try {
    await writeFile(`${place}/example.${extension}`, change(example));
    await import(/* @vite-ignore */ `${place}/example.${extension}`);
  } finally {
    log.mockRestore();
    await rm(place, { recursive: true });
  }
  return logged;
}
