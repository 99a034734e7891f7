// capi.h for a build against an IREE installation: the upstream headers of the same declarations.
#pragma once

#include "iree/base/api.h"
#include "iree/hal/api.h"
#include "iree/hal/drivers/init.h"
#include "iree/hal/drivers/local_task/task_device.h"
#include "iree/hal/local/executable_plugin_manager.h"
#include "iree/hal/local/loaders/embedded_elf_loader.h"
#include "iree/io/formats/irpa/irpa_parser.h"
#include "iree/io/parameter_index.h"
#include "iree/io/parameter_index_provider.h"
#include "iree/modules/hal/module.h"
#include "iree/modules/io/parameters/module.h"
#include "iree/task/executor.h"
#include "iree/vm/api.h"
#include "iree/vm/bytecode/module.h"
