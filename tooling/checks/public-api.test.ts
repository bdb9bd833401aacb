// What an API reference shows of the packages: each export has a docstring of its own, and the
// examples in docstrings have the right types. doc-examples.test.ts runs the examples.
import { afterAll, beforeAll, expect, it } from 'vitest';
import { DocExamples } from './doc-examples.ts';
import { PublicApi } from './public-api.ts';
import { libraries } from './workspace.ts';

const examples = new DocExamples();
let api: PublicApi;
beforeAll(() => {
  api = new PublicApi(examples.all.map(({ path }) => path));
});
afterAll(() => examples.remove());

const folders = libraries().map(({ folder }) => folder);

it.each(folders)('has a docstring on each export of each entry of %s', (folder) => {
  const found = api.exportsOf(folder);
  expect(found.length).toBeGreaterThan(5);
  const without = found.filter(({ isDocumented }) => !isDocumented).map(({ place }) => place);
  expect(without).toEqual([]);
});

it.each(folders)('has examples in %s', (folder) => {
  expect(examples.all.filter((example) => example.folder === folder).length).toBeGreaterThan(1);
});

it('has types that fit in all examples', () => {
  const errors = examples.all.flatMap(({ place, path }) =>
    api.typeErrors(path).map((error) => `${place} ${error}`),
  );
  expect(errors).toEqual([]);
});
