// NVML as nvidia-ml-py calls it, of a machine with two GPUs; the second has no power sensor.
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>

#define OK 0
#define NOT_SUPPORTED 3

static char gpus[2];
static uint64_t millijoules = 5000000;

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = &gpus[index]; return OK; }
static int index_of(void *gpu) { return (char *)gpu - gpus; }
int nvmlDeviceGetUUID(void *gpu, char *uuid, unsigned size) {
    snprintf(uuid, size, "GPU-%d", index_of(gpu));
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *gpu, uint64_t *memory) {
    memory[0] = 80ull << 30, memory[1] = 70ull << 30, memory[2] = 10ull << 30;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *gpu, unsigned *rates) { rates[0] = 25 + index_of(gpu), rates[1] = 5; return OK; }
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *mw) { *mw = 123456; return index_of(gpu) ? NOT_SUPPORTED : OK; }
int nvmlDeviceGetPowerManagementLimit(void *gpu, unsigned *mw) { *mw = 700000; return index_of(gpu) ? NOT_SUPPORTED : OK; }
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, uint64_t *mj) {
    *mj = millijoules += 1500;
    return index_of(gpu) ? NOT_SUPPORTED : OK;
}
const char *nvmlErrorString(int code) { return "an error"; }
