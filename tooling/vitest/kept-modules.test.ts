import { expect, it } from 'vitest';
import { workspacePackages } from '../checks/workspace.ts';
import { madeModulesForVite } from '../tsup/made-modules.ts';
import { moduleKeys } from './kept-modules.ts';

it('modules are made anew where a manifest leads their imports elsewhere', () => {
  const packages = workspacePackages();
  const moved = packages.map((one) => ({ ...one, manifest: { ...one.manifest, exports: {} } }));
  const [key, other] = [packages, moved].map((all) => moduleKeys(all)({ id: '/src/index.ts' }));
  expect(key).toContain('./src/index.ts');
  expect(other).not.toBe(key);
});

it('modules that are made out of other files are not kept', () => {
  const id = madeModulesForVite.resolveId('../page/index.html', '/src/output/report.ts');
  expect(moduleKeys([])({ id: id! })).toBe(false);
});
