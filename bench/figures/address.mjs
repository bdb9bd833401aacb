// The address of a file of the repository: npm shows a package's README where its neighbours are
// not.
import { readFileSync } from 'node:fs';

const { homepage } = JSON.parse(
  readFileSync(new URL('../../package.json', import.meta.url), 'utf8'),
);

/** @param {string} path from the root */
export function addressOf(path) {
  return `${homepage.split('#')[0]}/blob/main/${path}`;
}
