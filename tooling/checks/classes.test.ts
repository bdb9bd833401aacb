// A reader holds a class in mind: it has at most 30 members, private ones too. And he finds who
// reads an option: a constructor takes the object itself or the few values, for "find references"
// ends at a spread.
import { expect, it } from 'vitest';
import { type ClassShapes, classShapesIn } from './class-shapes.ts';
import { sourceFiles, workspacePackages } from './workspace.ts';

const MAX_MEMBERS = 30;

/** What is still to be mended, as the tests tell it. An entry that is not needed any more fails. */
const STILL: readonly string[] = [];

const shapes = workspacePackages()
  .flatMap(sourceFiles)
  .map((path) => [path, classShapesIn(path)] as const);

/** What is found in all files, each with its path, beside the entries of `STILL` of that kind. */
function compare(find: (shapes: ClassShapes) => readonly string[], kind: RegExp) {
  const found = shapes.flatMap(([path, shape]) => find(shape).map((text) => `${path}: ${text}`));
  return [found.toSorted(), STILL.filter((entry) => kind.test(entry)).toSorted()] as const;
}

it(`no class has more than ${MAX_MEMBERS} members`, () => {
  const large = ({ classes }: ClassShapes) =>
    classes
      .filter(({ numMembers }) => numMembers > MAX_MEMBERS)
      .map(({ name, numMembers }) => `${name} has ${numMembers} members`);
  const [found, still] = compare(large, / members$/);
  expect(found, 'Give a second idea in it a class of its own.').toEqual(still);
});

it('no object is spread into what a constructor takes', () => {
  const [found, still] = compare(({ spreads }) => spreads, /: new /);
  expect(found, 'Hand over the object itself, or name its values.').toEqual(still);
});

it('finds the classes of large packages', () => {
  const numClasses = shapes.reduce((sum, [, { classes }]) => sum + classes.length, 0);
  expect(numClasses).toBeGreaterThan(300);
});
