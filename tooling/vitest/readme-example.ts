// Runs an example of a package's README, which imports the package by its name.
import { readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { vi } from 'vitest';

export interface ReadmeExampleOptions {
  /** Default: js. */
  readonly extension?: 'js' | 'mjs' | 'ts';
  /** Which of the README's. Default: the first. */
  readonly index?: number;
  /** What a reader doesn't have to write, such as types where the tests are typed. */
  readonly change?: (example: string) => string;
}

/** What the example logs. `folder` is the package's, with a slash at its end. */
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
