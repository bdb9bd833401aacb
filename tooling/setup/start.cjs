// Crosses from the old-Node entry to the modules. Apart from run.cjs because `import()` is a syntax
// error on the Nodes that run.cjs turns away.
'use strict';

import('./run.mjs').then(({ run }) => run(process.argv.slice(2)));
